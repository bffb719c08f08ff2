"""READS. The forms of a Prometheus export; the same three columns out of all of them (`samples.py`)."""
