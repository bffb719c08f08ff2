"""What was going on with a member, noted beside the incident log so that a report can say why a group was down.

A failover is believed in milliseconds, by a refused connection or a silence. Why the process died Kubernetes tells seconds later:
killed for memory, evicted, its node without disk. So these facts are records of their own, with the times that Kubernetes
gives them, and whoever reads joins them with the incidents by member and time. Only what was seen is noted: a
record with cause ``unknown`` proves nothing and is told as what was near.

Each record has an id made of what it is about, so whoever notes it again (another operator, the next process) notes the same.
What goes on for a while is noted again with a later end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from brokergroup_operator.records.store import GroupKey

CIRCUMSTANCE: Final = "circumstance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """One fact about a member. `cause` is one of ``metric_names.CAUSES``, `what` Kubernetes' own word for it."""

    group: GroupKey
    cluster_name: str
    broker_name: str
    broker_id: int
    cause: str
    what: str
    started_at: dt.datetime
    ended_at: dt.datetime
    pod: str
    node: str = ""
    message: str = ""

    @property
    def id(self) -> str:
        """The same for everybody who notes it, whenever that is."""
        return f"{self.group}/{self.pod}/{self.what}@{iso(self.started_at)}"


class CircumstanceSink(Protocol):
    """Keeps circumstances."""

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Return when they are on the disk, or a moment later without."""
        ...


class NoSink:
    """Where no incident log is kept."""

    async def note(self, told: Sequence[Circumstance]) -> None:
        """Forget them."""


def circumstance_to_json(told: Circumstance, *, schema_version: int) -> dict[str, Any]:
    """The line of the log."""
    document: dict[str, Any] = {
        "schemaVersion": schema_version,
        "id": told.id,
        "kind": CIRCUMSTANCE,
        "namespace": told.group.namespace,
        "name": told.group.name,
        "cluster": told.cluster_name,
        "brokerName": told.broker_name,
        "brokerId": told.broker_id,
        "cause": told.cause,
        "what": told.what,
        "startedAt": iso(told.started_at),
        "endedAt": iso(told.ended_at),
        "pod": told.pod,
        "node": told.node,
        "message": told.message[:1024],
    }
    return {name: value for name, value in document.items() if value != ""}


def iso(moment: dt.datetime) -> str:
    """As all times of the log: UTC with milliseconds."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
