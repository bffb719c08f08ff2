"""`kubectl brokergroup migrate`: the same as `brokergroup migrate` (docs/tasks/migration.md)."""

import typer


def migrate(arguments: typer.Context) -> None:
    """From a running Java controller to ours, and back: everything after this word goes to `brokergroup migrate`."""
    from brokergroup_operator.cli.migrate_command import app

    app(args=arguments.args or ["--help"], prog_name="kubectl brokergroup migrate")
