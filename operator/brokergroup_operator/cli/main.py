"""The command `brokergroup`: one subcommand per process the project knows.

Each subcommand imports what it runs only when it is called: a replica must not pay for kopf, nor `--help` for a library.
"""

from typing import Annotated

import typer

from brokergroup_operator.cli import adopt_command, migrate_command, sla_command
from brokergroup_operator.cli.convert_command import convert
from brokergroup_operator.cli.demo_command import demo
from brokergroup_operator.cli.operator_command import operator
from brokergroup_operator.cli.process_commands import controller, fence, replica, sandbox
from brokergroup_operator.cli.running import end_with_standard_input
from brokergroup_operator.cli.written_report_command import slo

app = typer.Typer(
    help="RocketMQ broker groups on Kubernetes: the operator is the controller.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (operator, controller, replica, fence, sandbox, demo, convert):
    app.command(command.__name__)(command)
app.add_typer(sla_command.app, name="sla")
app.add_typer(slo, name="slo")
app.add_typer(migrate_command.app, name="migrate")
app.add_typer(adopt_command.app, name="adopt")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("brokergroup-operator"))
        raise typer.Exit


@app.callback()
def every_command(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end")
    ] = False,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", help="End when standard input does: for a child whose parent may die")
    ] = False,
) -> None:
    del version  # its callback has answered
    if until_stdin_ends:
        end_with_standard_input()


def main() -> None:
    """Run the command line, as `python -m brokergroup_operator.cli.main` does."""
    app()


if __name__ == "__main__":
    main()
