"""Moves groups from a running Java controller to ours and back; roles, ids and epochs stay (docs/tasks/migration.md)."""
