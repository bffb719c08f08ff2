"""An hour of the real system: its faults, its clients' observations, its logs, and the comparison with reports."""
