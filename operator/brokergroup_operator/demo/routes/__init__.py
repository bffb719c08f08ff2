"""A NameServer for a sandbox of Python replicas, in the sandbox's own process: no JVM."""
