"""Render: the objects and the configuration that a group wants, built from its spec and from what was seen."""
