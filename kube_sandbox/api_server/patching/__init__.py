"""From what a client sends to the object after it: JSON, merge and strategic merge patches, server-side apply and its owners."""
