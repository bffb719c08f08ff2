"""Who is master in which epoch, and when a message may be acknowledged."""
