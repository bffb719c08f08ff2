"""MIGRATES. From a running Java controller to ours and back; roles, ids and epochs remain (docs/tasks/migration.md)."""
