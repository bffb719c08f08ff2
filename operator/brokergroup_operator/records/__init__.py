"""Where a broker group's record is kept: the Kubernetes API (compare-and-set), a file, or memory."""
