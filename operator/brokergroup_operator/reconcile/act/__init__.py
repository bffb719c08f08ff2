"""Act: carries out a plan at the API server, action by action."""
