"""Procedures: each type of operation, how it begins and how its progress is judged; a file for each."""
