"""What the plugin's verbs share on the command line: exit codes, options as kubectl spells them, durations, the confirmation."""

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster


class PluginError(Exception):
    """Why a verb failed, in one line; the type carries the exit code (docs/tasks/operations.md, "Exit codes")."""

    exit_code = 1


class OperationFailedError(PluginError):
    """The operation was rejected, or failed."""


class UsageError(PluginError):
    """The command line contradicts itself, or asks for what cannot be."""

    exit_code = 2


class NotFoundError(PluginError):
    """The object does not exist, or the cluster does not know its kind."""

    exit_code = 3


class ForbiddenError(PluginError):
    """The user of the kubeconfig may not do this."""

    exit_code = 4


class CannotConnectError(PluginError):
    """The kubeconfig cannot be used, or no API server answers at its address."""

    exit_code = 5


class RefusedError(PluginError):
    """The API server refused the object, or could not serve the request."""

    exit_code = 6


class NotConfirmedError(PluginError):
    """The typed name is not the group's: nothing was done."""

    exit_code = 7


class WaitedTooLongError(PluginError):
    """--timeout passed; the operation goes on."""

    exit_code = 8


class NotProvedError(PluginError):
    """The answer would rest on the operator's last status, and no current Lease proves that the operator is alive, or gone."""

    exit_code = 9


UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_PARTS = re.compile(rf"(?:{_NUMBER}(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)


def seconds(text: str | float) -> float:
    """Return a duration as kubectl takes it (Go's 100s, 1m30s, 1.5h), or plain seconds; an option's default is a number."""
    stripped = str(text).strip()
    if _PLAIN.fullmatch(stripped):
        return float(stripped)
    if _PARTS.fullmatch(stripped):
        return sum(float(number) * UNIT_SECONDS[unit] for number, unit in _PART.findall(stripped))
    raise typer.BadParameter(f"{stripped!r}: expected a duration like 100s, 1m30s or 1.5h, or seconds like 100")


def whole_seconds(text: str | int) -> int:
    """The same for a field of the API in whole seconds, 1 to 3600."""
    found = seconds(text)
    if not found.is_integer() or not 1 <= found <= 3600:
        raise typer.BadParameter(f"{str(text)!r}: expected whole seconds, 1s to 1h")
    return int(found)


class Format(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_whole(self) -> bool:
        """Whether whole objects are printed."""
        return self in (Format.JSON, Format.YAML)


GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="metadata.name of the BrokerGroup")]
OptionalGroupName = Annotated[str | None, typer.Argument(metavar="[GROUP]", help="metadata.name of the BrokerGroup")]
Member = Annotated[int, typer.Argument(metavar="BROKER-ID", help="As in status.members", min=1)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the group; default: the context's")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig")]
Kubeconfig = Annotated[Path | None, typer.Option("--kubeconfig", help="A kubeconfig file")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again after every change")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing")]
ConfirmName = Annotated[
    str | None, typer.Option("--confirm", metavar="GROUP", help="The group's name, instead of typing it when asked")
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How it is printed")]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which cluster, and which namespace of it."""

    namespace: Namespace = None
    context: Context = None
    kubeconfig: Kubeconfig = None

    def cluster(self) -> "Cluster":
        """Only now the HTTP client is imported: `--help` starts without it."""
        from brokergroup_operator.kubectl.cluster import Cluster

        return Cluster(self.kubeconfig, self.context, self.namespace)


@dataclass(frozen=True, kw_only=True)
class Unconfirmed:
    """A verb that asks for no confirmation."""

    yes: ClassVar[bool] = False
    confirm: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class ConfirmedByName:
    """A verb that needs the group's name, typed or by --confirm."""

    yes: ClassVar[bool] = False
    confirm: ConfirmName = None


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A verb that needs the group's name, or --yes."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False
    confirm: ConfirmName = None


Confirmation = Unconfirmed | ConfirmedByName | Confirmed


def confirm(group: str, what: str, given: Confirmation) -> None:
    """Raise NotConfirmedError unless --yes, --confirm GROUP, or the name typed at the prompt confirms what can lose data."""
    typed = given.confirm
    if typed is None and given.yes:
        return
    if typed is None:
        if not is_terminal():
            raise NotConfirmedError(f"{what}: no terminal to ask at; expected --confirm {group}")
        typer.echo(f"{what}.", err=True)
        typed = str(typer.prompt(f"Type the name of the group ({group}) to go on", err=True))
    if typed != group:
        raise NotConfirmedError(f"{what}: {typed!r} is not the name of the group, {group!r}; nothing was done")


def is_terminal() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()
