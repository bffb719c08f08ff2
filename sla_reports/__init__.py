"""MEASURES. From Prometheus exports and the operator's incident log to availability and recovery times, with Spark."""
