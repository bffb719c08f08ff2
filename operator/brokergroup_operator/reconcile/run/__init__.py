"""Run: the plane that starts passes: its Lease, its queue, its watches."""
