"""Rules: what the API server refuses, as CEL; a file for each part of the spec."""
