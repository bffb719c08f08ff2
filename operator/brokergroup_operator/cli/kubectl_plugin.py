"""`kubectl brokergroup`: what a broker group is doing, in one look.

It reads with pykube-ng, whose light objects start faster than the typed client: a plugin is run by a person who waits.
It only reads, so it needs no rights beyond `get` and `list` on brokergroups.
"""

import sys
from typing import Annotated, Any

import typer
from pykube.config import KubeConfig
from pykube.exceptions import KubernetesError
from pykube.http import HTTPClient
from pykube.objects import NamespacedAPIObject
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="Look at broker groups.", no_args_is_help=True, add_completion=False)

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the group")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig")]


class BrokerGroup(NamespacedAPIObject):
    """A BrokerGroup as pykube sees it."""

    version = "brokergroup.dev/v1alpha1"
    endpoint = "brokergroups"
    kind = "BrokerGroup"


@app.command()
def status(name: str, namespace: Namespace = "default", context: Context = None) -> None:
    """Members, roles, epoch, SyncStateSet and the last failover of a group."""
    group = BrokerGroup.objects(_api(context)).filter(namespace=namespace).get_or_none(name=name)
    if group is None:
        typer.echo(f"brokergroup {namespace}/{name}: not found", err=True)
        raise typer.Exit(1)
    _print_status(group.obj, Console())


@app.command("list")
def list_groups(namespace: Namespace = "default", context: Context = None) -> None:
    """The groups of a namespace, one line each."""
    table = Table("name", "replicas", "master", "epoch", "in sync", "ready")
    for group in BrokerGroup.objects(_api(context)).filter(namespace=namespace):
        state = group.obj.get("status", {})
        table.add_row(
            group.name,
            str(group.obj["spec"].get("replicas", "")),
            str(state.get("master", {}).get("brokerId", "-")),
            str(state.get("masterEpoch", "-")),
            str(len(state.get("syncStateSet", {}).get("brokerIds", []))),
            _condition(state, "Ready"),
        )
    Console().print(table)


def _print_status(group: dict[str, Any], console: Console) -> None:
    state = group.get("status", {})
    master = state.get("master", {})
    in_sync = state.get("syncStateSet", {})
    console.print(
        f"[bold]{group['metadata']['namespace']}/{group['metadata']['name']}[/bold]   master {master.get('brokerId', 'none')}"
        f"   epoch {state.get('masterEpoch', '-')}   SyncStateSet {in_sync.get('brokerIds', [])}",
        highlight=False,
    )
    members = Table("id", "pod", "address", "role", "state")
    for member in state.get("members", []):
        members.add_row(*(str(member.get(key, "")) for key in ("brokerId", "pod", "address", "role", "state")))
    console.print(members)
    for condition in state.get("conditions", []):
        console.print(
            f"  {condition['type']}={condition['status']}  {condition.get('reason', '')}: {condition.get('message', '')}"
        )
    if last := state.get("lastFailover"):
        phases = "  ".join(f"{name} {value}" for name, value in (last.get("phases") or {}).items())
        console.print(
            f"last failover: {last.get('trigger')}, {last.get('from')} -> {last.get('to')}, epoch {last.get('epoch')}, "
            f"{last.get('durationMilliseconds')} ms ({phases})",
            highlight=False,
        )


def _condition(state: dict[str, Any], kind: str) -> str:
    for condition in state.get("conditions", []):
        if condition["type"] == kind:
            return f"{condition['status']} ({condition.get('reason', '')})"
    return "Unknown"


def _api(context: str | None) -> HTTPClient:
    try:
        configuration = KubeConfig.from_env()  # type: ignore[no-untyped-call] # pykube is untyped
        if context is not None:
            configuration.set_current_context(context)
        return HTTPClient(configuration)
    except KubernetesError as error:
        typer.echo(f"kubeconfig: {error}; expected one at $KUBECONFIG or ~/.kube/config", err=True)
        raise typer.Exit(2) from error


def main() -> None:
    """Entry point of the console script `kubectl-brokergroup`."""
    sys.exit(app())
