"""MIGRATES. From a running Java controller to ours and back; roles, ids and epochs stay as they are (docs/tasks/migration.md)."""
