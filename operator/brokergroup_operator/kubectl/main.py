"""The command `kubectl-brokergroup`, which kubectl runs for `kubectl brokergroup`.

Starting must be cheap: this module and the verbs' modules import typer and nothing heavy; the call of a verb imports the HTTP
client. `tests/kubectl/test_main.py` checks it. kubectl (1.26 and later) asks `kubectl_complete-brokergroup` for completions of a
plugin: `completion` prints that program, `complete` answers it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.kubectl.command_line import Place, PluginError, UsageError
from brokergroup_operator.kubectl.explain import explain
from brokergroup_operator.kubectl.generate import generate
from brokergroup_operator.kubectl.operate import COMMANDS
from brokergroup_operator.kubectl.operator_pods import dashboard, plugin_version, version
from brokergroup_operator.kubectl.release import release
from brokergroup_operator.kubectl.report import report
from brokergroup_operator.kubectl.status import history, lag, status
from brokergroup_operator.kubectl.top import top
from brokergroup_operator.kubectl.upgrade import upgrade

if TYPE_CHECKING:
    from collections.abc import Callable

COMPLETION = """#!/bin/sh
# Put this on your PATH as kubectl_complete-brokergroup, and make it executable:
#   kubectl brokergroup completion > ~/.local/bin/kubectl_complete-brokergroup
#   chmod +x ~/.local/bin/kubectl_complete-brokergroup
exec kubectl-brokergroup __complete "$@"
"""
# The last line that kubectl reads is a directive; this one: no file names.
NO_FILES = ":4"
WITHOUT_GROUP = frozenset({"version", "completion", "generate", "migrate", "adopt"})

app = typer.Typer(
    name="kubectl brokergroup",
    help="Show RocketMQ broker groups, and request operations on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: rich would cost as much start time as all the rest.
    rich_markup_mode=None,
)


def completion() -> None:
    """Print the program that lets kubectl complete verbs, options and group names."""
    typer.echo(COMPLETION, nl=False)


def migrate(arguments: typer.Context) -> None:
    """From a running Java controller to ours, and back: everything after this word goes to `brokergroup migrate`."""
    from brokergroup_operator.cli.migrate_command import app

    app(args=arguments.args or ["--help"], prog_name="kubectl brokergroup migrate")


def adopt(arguments: typer.Context) -> None:
    """Go on with the stores of brokers with static roles, or of another controller: `brokergroup adopt`."""
    from brokergroup_operator.cli.adopt_command import app

    app(args=arguments.args or ["--help"], prog_name="kubectl brokergroup adopt")


VERBS: dict[str, Callable[..., None]] = {
    "status": status, "top": top, "switchover": COMMANDS["switchover"], "history": history, "lag": lag, "explain": explain,
    **{name: COMMANDS[name] for name in ("pause", "resume", "hibernate", "wake", "stop-broker", "start-broker")},
    **{name: COMMANDS[name] for name in ("restart", "rebuild", "decommission", "elect", "drill", "backup", "retire")},
    "upgrade": upgrade, "release": release, "report": report, "dashboard": dashboard, "generate": generate, "version": version,
    "completion": completion,
}  # fmt: skip
for name, verb in VERBS.items():
    app.command(name)(verb)
for passed_on in (migrate, adopt):
    app.command(
        passed_on.__name__,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )(passed_on)


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
    """Show RocketMQ broker groups, and request operations on them."""
    del version  # its callback has answered


def verb_names() -> list[str]:
    """Return the verbs, sorted."""
    return sorted(command.name or "" for command in app.registered_commands)


def complete(words: list[str]) -> list[str]:
    """Return the candidates for the last word; no group names if the cluster does not answer."""
    *before, last = words or [""]
    verbs = _arguments(before)
    if verbs is None:
        return []  # the value of an option
    if not verbs:
        candidates = verb_names()
    elif last.startswith("-"):
        command = getattr(typer.main.get_command(app), "commands", {}).get(verbs[0])
        spellings = [spelling for item in getattr(command, "params", []) for spelling in item.opts]
        candidates = sorted(spelling for spelling in spellings if spelling.startswith("--"))
    elif len(verbs) > 1 or verbs[0] in WITHOUT_GROUP:
        candidates = []
    else:
        candidates = _group_names(before)
    return [candidate for candidate in candidates if candidate.startswith(last)]


def _arguments(before: list[str]) -> list[str] | None:
    """Return the verb and its arguments, without options and their values; None if the next word is an option's value."""
    found: list[str] = []
    words = iter(before)
    for word in words:
        if not word.startswith("-"):
            found.append(word)
        elif "=" not in word and _takes_a_value(found, word) and next(words, None) is None:
            return None
    return found


def _takes_a_value(arguments: list[str], option: str) -> bool:
    commands = getattr(typer.main.get_command(app), "commands", {})
    parameters = getattr(commands.get(arguments[0]), "params", []) if arguments else []
    return any(option in one.opts and not getattr(one, "is_flag", False) for one in parameters)


def _group_names(before: list[str]) -> list[str]:
    kubeconfig = _value_of(before, "--kubeconfig")
    place = Place(
        context=_value_of(before, "--context"),
        namespace=_value_of(before, "-n", "--namespace"),
        kubeconfig=None if kubeconfig is None else Path(kubeconfig),
    )
    try:
        return [str(group["metadata"]["name"]) for group in place.cluster().groups()]
    except PluginError:
        return []


def _value_of(words: list[str], *options: str) -> str | None:
    for word, following in zip(words, [*words[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option in options and (equals or following is not None):
            return value if equals else following
    return None


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
