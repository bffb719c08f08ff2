"""The command `kubectl-brokergroup`, which kubectl runs for `kubectl brokergroup`.

Starting must be cheap: this module and the verbs' modules import typer and nothing heavy; a verb brings the HTTP client when it
is called. `tests/kubectl/test_start.py` holds that in place.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

import typer

from brokergroup_operator.kubectl.errors import PluginError, UsageError
from brokergroup_operator.kubectl.verbs.completion import NO_FILES, complete, completion
from brokergroup_operator.kubectl.verbs.dashboard import dashboard
from brokergroup_operator.kubectl.verbs.decommission import decommission
from brokergroup_operator.kubectl.verbs.drill import drill
from brokergroup_operator.kubectl.verbs.elect import elect
from brokergroup_operator.kubectl.verbs.explain import explain
from brokergroup_operator.kubectl.verbs.generate import generate
from brokergroup_operator.kubectl.verbs.hibernate import hibernate
from brokergroup_operator.kubectl.verbs.history import history
from brokergroup_operator.kubectl.verbs.lag import lag
from brokergroup_operator.kubectl.verbs.migrate import migrate
from brokergroup_operator.kubectl.verbs.pause import pause
from brokergroup_operator.kubectl.verbs.rebuild import rebuild
from brokergroup_operator.kubectl.verbs.release import release
from brokergroup_operator.kubectl.verbs.report import report
from brokergroup_operator.kubectl.verbs.restart import restart
from brokergroup_operator.kubectl.verbs.resume import resume
from brokergroup_operator.kubectl.verbs.status import status
from brokergroup_operator.kubectl.verbs.switchover import switchover
from brokergroup_operator.kubectl.verbs.top import top
from brokergroup_operator.kubectl.verbs.version import plugin_version, version
from brokergroup_operator.kubectl.verbs.wake import wake

app = typer.Typer(
    name="kubectl brokergroup",
    help="Look at RocketMQ broker groups, and ask for what is done to them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: rich would cost as much start time as all the rest.
    rich_markup_mode=None,
)
for verb in (
    status, top, switchover, history, lag, explain, pause, resume, hibernate, wake, restart, rebuild, decommission, elect, drill,
    release, report, dashboard, generate, version, completion,
):  # fmt: skip
    app.command(verb.__name__)(verb)
app.command(
    "migrate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)(migrate)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(plugin_version())
        raise typer.Exit


@app.callback()
def every_verb(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the plugin's version, and end"),
    ] = False,
) -> None:
    """Look at RocketMQ broker groups, and ask for what is done to them."""
    del version  # its callback has answered


def verb_names() -> list[str]:
    """As a person types them."""
    return sorted(command.name or "" for command in app.registered_commands)


def options_of(verb: str) -> list[str]:
    """The long options of a verb."""
    group = typer.main.get_command(app)
    command = getattr(group, "commands", {}).get(verb)
    spellings = [spelling for item in getattr(command, "params", []) for spelling in item.opts]
    return sorted(spelling for spelling in spellings if spelling.startswith("--"))


def main() -> None:
    """Entry point of the console script `kubectl-brokergroup`."""
    if sys.argv[1:2] == ["__complete"]:
        for candidate in complete(sys.argv[2:]):
            typer.echo(candidate)
        typer.echo(NO_FILES)
        return
    try:
        app()
    except PluginError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if importlib.util.find_spec("brokergroup_operator.cli") is not None:
            raise
        # The plugin's own archive holds what most verbs need (.ci/dist.py).
        package = f"pip install brokergroup-operator=={plugin_version()}"
        typer.echo(f"error: {sys.argv[1]} needs the whole package: {package} (no {error.name} is here)", err=True)
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
