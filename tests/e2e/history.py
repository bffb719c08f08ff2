"""Every version of a group's record from a watch, checked against the laws that no fault may break.

The laws are those of docs/concepts/architecture.md: an epoch never falls, one epoch has one master, a master comes from the
SyncStateSet, broker ids are assigned upwards and never twice, a replica's check code never changes.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube import Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.kube.client import JsonObject, WatchEvent


@dataclass
class RecordHistory:
    """The versions in order."""

    versions: list[JsonObject] = field(default_factory=list)

    @property
    def epochs(self) -> list[int]:
        """Return each epoch once, in order of appearance."""
        return [epoch for epoch, _ in itertools.groupby(int(record.get("masterEpoch", 0)) for record in self.versions)]

    def violations(self) -> list[str]:
        """Return each step that broke a law, in words; empty if there is none."""
        broken = [
            f"{law}: {before} -> {after}"
            for before, after in itertools.pairwise(self.versions)
            for law in _broken_by(before, after)
        ]
        return broken + self.epochs_with_two_masters()

    def epochs_with_two_masters(self) -> list[str]:
        """Return epochs with two masters. Even a lost record must not cause one: the brokers keep their epochs."""
        return [
            f"epoch {epoch} has two masters: {sorted(masters)}"
            for epoch, masters in self.masters_of_epochs().items()
            if len(masters) > 1
        ]

    def masters_of_epochs(self) -> dict[int, set[int]]:
        """Return the masters of each epoch."""
        masters: dict[int, set[int]] = {}
        for record in self.versions:
            if record.get("masterBrokerId") is not None:
                masters.setdefault(int(record["masterEpoch"]), set()).add(int(record["masterBrokerId"]))
        return masters


def _broken_by(before: JsonObject, after: JsonObject) -> Iterator[str]:
    for member in ("masterEpoch", "syncStateSetEpoch", "nextBrokerId"):
        if after.get(member, 0) < before.get(member, 0):
            yield f"{member} fell"
    # A repair takes two epochs at once, for the same master: under the first one only the slave gets another master.
    is_cure = (after.get("change") or {}).get("kind") == "Cure" and after.get("masterBrokerId") == before.get(
        "masterBrokerId"
    )
    if after.get("masterEpoch", 0) > before.get("masterEpoch", 0) + (2 if is_cure else 1):
        yield "masterEpoch rose by more than one in one step"
    new_epoch = after.get("masterEpoch", 0) > before.get("masterEpoch", 0)
    master = after.get("masterBrokerId")
    # An epoch may also begin without a master: its predecessor is lost and no member of the set can lead.
    if new_epoch and master is not None and before.get("masterEpoch", 0) > 0 and master not in _seats(before):
        yield "a master from outside the SyncStateSet, and not eligible"
    if not new_epoch and before.get("masterBrokerId") not in (None, master):
        yield "another master in the same epoch"
    # The record remembers the member that loses the last seat: its data may return.
    if before.get("masterEpoch", 0) and not _seats(after) and not after.get("lostSeats"):
        yield "the SyncStateSet was emptied, and nobody is eligible"
    yield from _ids_broken_by(before, after)


def _ids_broken_by(before: JsonObject, after: JsonObject) -> Iterator[str]:
    known = _by_id(before)
    for broker_id, replica in _by_id(after).items():
        old = known.get(broker_id)
        if old is None and broker_id < before.get("nextBrokerId", 1):
            yield f"broker id {broker_id} was handed out again"
        if old is not None and old.get("registerCheckCode") not in ("", None, replica.get("registerCheckCode")):
            yield f"the check code of {broker_id} changed"
        if old is not None and old.get("reservedFor", "") != replica.get("reservedFor", ""):
            yield f"broker id {broker_id} went to another pod"
        if broker_id >= after.get("nextBrokerId", 1):
            yield f"broker id {broker_id} is not below nextBrokerId"


def _seats(record: JsonObject) -> set[int]:
    """Return the members with every acknowledged message: the SyncStateSet, and the eligible while no send can succeed (rule 1)."""
    return {*record.get("syncStateSet", []), *record.get("eligible", [])}


def _by_id(record: JsonObject) -> dict[int, dict[str, Any]]:
    return {int(replica["brokerId"]): replica for replica in record.get("replicas", [])}


@asynccontextmanager
async def record_history(api: KubernetesApi, namespace: str, name: str) -> AsyncIterator[RecordHistory]:
    """Collect every version of a record for the length of a block."""
    history = RecordHistory()

    def note(event: WatchEvent) -> None:
        record = event.object.get("record")
        if event.object["metadata"]["name"] == name and event.type != "DELETED" and record:
            history.versions.append(record)

    reflector = Reflector(api, BROKER_GROUP_STATES, namespace=namespace, on_change=note)
    watching = asyncio.create_task(reflector.run())
    try:
        await reflector.wait_synced(10.0)
        yield history
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
