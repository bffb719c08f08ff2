"""Creates a BrokerGroupOperation, and waits for its end if asked to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.errors import NotFoundError, OperationFailedError, WaitedTooLongError
from brokergroup_operator.kubectl.options import DEFAULT_TIMEOUT_SECONDS, Format
from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUP_OPERATIONS, BROKER_GROUPS
from brokergroup_operator.kubectl.reach.operator_pods import why_nobody_acts
from brokergroup_operator.kubectl.show.printing import print_objects

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster

POLL_SECONDS = 0.3
# An operator takes an operation up within its resync at the latest, commonly at once. After this long a silence is worth a word.
SILENCE_SECONDS = 10.0
FINISHED = ("Succeeded", "Failed", "Rejected")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How it is asked, beside what."""

    dry_run: bool = False
    wait: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    output: Format = Format.TABLE


def operation(group: str, kind: str, section: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """The object. Pure."""
    spec: dict[str, Any] = {"brokerGroupRef": {"name": group}, "type": kind, kind.lower(): section}
    if dry_run:
        # A rehearsed plan is of no use to the history.
        spec |= {"dryRun": "All", "ttlSecondsAfterFinished": 300}
    return {
        "apiVersion": names.API_VERSION,
        "kind": BROKER_GROUP_OPERATIONS.name,
        "metadata": {"generateName": f"{group}-{kind.lower()}-", "labels": {names.LABEL_BROKER_GROUP: group}},
        "spec": spec,
    }


def ask(cluster: Cluster, group: str, kind: str, section: dict[str, Any], asking: Asking) -> None:
    """Create it and tell what became of it. A dry run is always waited for: its answer is the plan."""
    cluster.get(BROKER_GROUPS, group)
    created = cluster.create(BROKER_GROUP_OPERATIONS, operation(group, kind, section, dry_run=asking.dry_run))
    name = created["metadata"]["name"]
    if not (asking.wait or asking.dry_run):
        if not print_objects(created, asking.output):
            typer.echo(f"brokergroupoperation.{names.GROUP}/{name} created")
        return
    if asking.output in (Format.TABLE, Format.WIDE):
        typer.echo(f"brokergroupoperation.{names.GROUP}/{name} created, waiting", err=True)
    finished = wait_for(cluster, name, asking.timeout_seconds)
    if not print_objects(finished, asking.output):
        _print_result(finished)
    status = finished["status"]
    if status["phase"] != "Succeeded":
        raise OperationFailedError(f"{name}: {status['phase']}: {(status.get('result') or {}).get('message', '')}")


def wait_for(cluster: Cluster, name: str, timeout_seconds: float) -> dict[str, Any]:
    """The finished operation."""
    begun = time.monotonic()
    end, last = begun + timeout_seconds, ""
    nobody = ""
    while True:
        try:
            found = cluster.get(BROKER_GROUP_OPERATIONS, name)
        except NotFoundError as error:
            raise OperationFailedError(
                f"{name}: it was deleted before its end was seen; last: {last or 'Pending'}"
            ) from error
        status = found.get("status") or {}
        phase, message = status.get("phase") or "Pending", (status.get("result") or {}).get("message") or ""
        if phase in FINISHED:
            return found
        if (said := f"{phase}: {message}" if message else phase) != last:
            last = said
            typer.echo(f"  {said}", err=True)
        now = time.monotonic()
        if status:
            nobody = ""
        elif not nobody and now - begun >= SILENCE_SECONDS:
            nobody = why_nobody_acts(cluster)
            typer.echo(f"  {nobody}", err=True)
        if now >= end:
            last = f"{last}; {nobody}" if nobody else last
            raise WaitedTooLongError(f"{name}: not over after {timeout_seconds:g} s, it goes on; last: {last}")
        time.sleep(POLL_SECONDS)


def _print_result(finished: dict[str, Any]) -> None:
    result = finished["status"].get("result") or {}
    typer.echo(f"{finished['status']['phase']}: {result.get('message', '')}")
    for number, step in enumerate(result.get("plan") or [], start=1):
        typer.echo(f"  {number}. {step}")
    if result.get("phases"):
        typer.echo("  " + "  ".join(f"{name} {value} ms" for name, value in result["phases"].items()))
