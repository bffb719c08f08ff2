"""What brokers run with beside what they were given: found by reading it back (26), put back where a promise rests on it. Pure.

Request 25 (`mqadmin updateBrokerConfig`) changes a running broker. A key that acknowledgements rest on is put back at once.
Another is named and left: it may be a person's measure in an emergency (`fileReservedTime` on a full disk). Nothing is judged
while the master changes: a switchover holds minInSyncReplicas up meanwhile, and `controller/upkeep/keeper.py` puts that back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import broker_keys
from brokergroup_operator.reconcile.plan import PutBackBrokerConfig
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.render.containers import with_times_of
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# A message names at most so many keys.
KEYS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One key of one member that has another value than its process was given."""

    member: Member
    key: str
    found: str
    expected: str

    def __str__(self) -> str:
        found, expected = broker_keys.shown(self.found), broker_keys.shown(self.expected)
        return f"broker {self.member.broker_id} (pod {self.member.pod}): {self.key}={found}, expected {expected}"

    @property
    def breaks_durability(self) -> bool:
        """Whether what SEND_OK promises rests on it."""
        return self.key in broker_keys.DURABILITY_KEYS


def drifted_keys(seen: Observed, settings: ReconcileSettings) -> tuple[Drift, ...]:
    """By member and key. What was not read, or is about to be sent, or comes with the next start, is no drift."""
    snapshot = seen.snapshot
    if snapshot is None or snapshot.in_progress is not None or snapshot.is_changing:
        return ()
    if observed.being_deleted(seen.group_object) or seen.group.spec.maintenance.hibernated:
        return ()
    found: list[Drift] = []
    for member in membership(seen).members:
        pod, said = seen.pods.get(member.pod), snapshot.member_configuration.get(member.broker_id)
        if pod is None or said is None or not observed.pod_is_ready(pod) or member.broker_id not in snapshot.live:
            continue
        expected = {**_at_the_start(seen, pod, settings), **broker_config.given_to(pod)}
        leads = seen.record is not None and seen.record.granted_master_id == member.broker_id
        if leads and said.get(broker_keys.ROLE) == "ASYNC_MASTER":
            # A master by the record asks no slave so; any other word of its role is the controller's matter.
            expected[broker_keys.ROLE] = "SYNC_MASTER"
        found += _differences(member, said, expected)
    return tuple(found)


def _at_the_start(seen: Observed, pod: JsonObject, settings: ReconcileSettings) -> Mapping[str, str]:
    """What the process read when it started; of a pod that was made from another configuration nothing is known."""
    as_made = with_times_of(seen.group, pod)
    if not broker_config.started_as(pod, as_made, settings):
        return {}
    # If the pod keeps shorter times, its process may have been started before or after the present ones were written.
    made, written = (broker_config.start_values(group, settings) for group in (as_made, seen.group))
    return {**broker_keys.DEFAULTS[seen.group.spec.implementation], **dict(made.items() & written.items())}


def _differences(member: Member, said: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[Drift]:
    for key, wanted in sorted(expected.items()):
        found = said.get(key)
        if found is None or broker_keys.same_value(found, wanted):
            continue
        if key == broker_keys.MINIMUM and broker_keys.QUIET_MINIMUM in (found, wanted):
            continue  # kept quiet on purpose, or left so
        yield Drift(member=member, key=key, found=found, expected=wanted)


def put_back_actions(drifts: Sequence[Drift], held: frozenset[str]) -> Iterator[PutBackBrokerConfig]:
    """One for each member whose acknowledgements are other ones than spec.durability says, or that has another value of `held`."""
    of_members: dict[Member, dict[str, str]] = {}
    for drift in drifts:
        if drift.breaks_durability or drift.key in held:
            of_members.setdefault(drift.member, {})[drift.key] = drift.expected
    why = "another writer changed what the operator vouches for"
    for member, values in of_members.items():
        yield PutBackBrokerConfig(reason=why, broker_id=member.broker_id, pod=member.pod, values=values)


def told(items: Sequence[object], most: int = KEYS_SHOWN) -> str:
    """The first of them, and how many more there are."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return "; ".join([*map(str, items[:most]), *more])
