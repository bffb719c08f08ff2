"""Definitions: `crds/` and their reference page, written from the types and rules."""
