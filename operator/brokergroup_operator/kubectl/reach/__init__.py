"""Reach: the API server as the plugin speaks to it, and which operator answers for a group."""
