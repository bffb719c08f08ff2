"""The command `brokergroup`: one subcommand per process the project knows.

Each subcommand imports what it runs only when it is called: a replica must not pay for kopf, nor `--help` for anything.
"""

import typer

from brokergroup_operator.cli import (
    demo_command,
    operator_command,
    replica_command,
    sandbox_command,
    sla_command,
)

app = typer.Typer(
    help="RocketMQ broker groups on Kubernetes: the operator is the controller.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("operator")(operator_command.operator)
app.command("replica")(replica_command.replica)
app.command("sandbox")(sandbox_command.sandbox)
app.command("demo")(demo_command.demo)
app.add_typer(sla_command.app, name="sla")


def main() -> None:
    """Entry point of the console script `brokergroup`."""
    app()


if __name__ == "__main__":
    main()
