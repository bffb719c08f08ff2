"""Shadow: our decision beside each decision of the Java controller; pure.

Each change of Java's state is split into the requests that could have caused it. ``controller_core.step`` decides each of them,
with the earlier state and the heartbeats received here. A judgement holds both outcomes and both reasons. If they differ, a user
decides which is right (``docs/reference/deviations.md`` lists known differences).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.migrate.java import MIGRATED, record_of
from controller_core.decision import ControllerCode
from controller_core.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    RegisterBroker,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.migrate.java import JavaState
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord, LiveReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One decision of the Java controller beside ours."""

    broker_name: str
    what: str
    java: str
    ours: str
    why: str
    agrees: bool

    def as_json(self) -> dict[str, Any]:
        """Return one line of the report."""
        return {
            "group": self.broker_name,
            "what": self.what,
            "java": self.java,
            "ours": self.ours,
            "why": self.why,
            "agrees": self.agrees,
        }


def heard_before(
    earlier: Mapping[int, LiveReplica], now: Mapping[int, LiveReplica], *, master_epoch: int
) -> dict[int, LiveReplica]:
    """Return the live replicas, with their reports from before the judged decision.

    The decision is seen a moment after it was made, and brokers may have followed it by then: what they say in its epoch is its
    consequence, and would look to the state machine like an epoch it never granted.
    """
    return {
        broker_id: earlier.get(broker_id, replica)
        for broker_id, replica in now.items()
        if broker_id in earlier or replica.epoch <= master_epoch
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """Our controller, as it would be configured for this group."""

    cluster_name: str
    next_broker_id: int = 1
    settings: ControllerSettings = field(default_factory=ControllerSettings)

    def judge(
        self, before: JavaState | None, after: JavaState, live: Mapping[int, LiveReplica]
    ) -> tuple[Judgement, ...]:
        """Judge every decision between two states of one group. ``live`` is the result of ``heard_before``."""
        if before is None:
            return ()
        record = record_of(before, cluster_name=self.cluster_name, next_broker_id=self.next_broker_id)
        return tuple(self._judgements(record, before, after, live))

    def _judgements(
        self, record: BrokerGroupRecord, before: JavaState, after: JavaState, live: Mapping[int, LiveReplica]
    ) -> Iterator[Judgement]:
        for broker_id in sorted(set(after.addresses) - set(before.addresses)):
            judgement, applied = self._new_id(record, after, broker_id)
            record = applied or record
            yield judgement
        for broker_id in sorted(set(after.addresses) & set(before.addresses)):
            if after.addresses[broker_id] != before.addresses[broker_id]:
                yield self._moved(record, after, broker_id, live)
        if after.master_epoch != before.master_epoch:
            yield self._election(record, before, after, live)
        elif after.sync_state_set_epoch != before.sync_state_set_epoch:
            yield self._alteration(record, before, after, live)
        for broker_id in sorted(set(before.addresses) - set(after.addresses)):
            yield self._cleaned(record, broker_id, live)

    def _new_id(
        self, record: BrokerGroupRecord, after: JavaState, broker_id: int
    ) -> tuple[Judgement, BrokerGroupRecord | None]:
        request = ApplyBrokerId(
            cluster_name=record.cluster_name,
            broker_name=record.broker_name,
            applied_broker_id=broker_id,
            register_check_code=f"{after.addresses[broker_id]};{MIGRATED}",
        )
        decision = step(record, request, {}, self.settings)
        judgement = _as_java(record, decision, what=f"id {broker_id} applied for", verb="granted")
        return judgement, decision.record if judgement.agrees else None

    def _moved(
        self, record: BrokerGroupRecord, after: JavaState, broker_id: int, live: Mapping[int, LiveReplica]
    ) -> Judgement:
        request = RegisterBroker(
            cluster_name=record.cluster_name,
            broker_name=record.broker_name,
            broker_id=broker_id,
            broker_address=after.addresses[broker_id],
        )
        decision = step(record, request, live, self.settings)
        what = f"broker {broker_id} registered at {after.addresses[broker_id]}"
        return _as_java(record, decision, what=what, verb="accepted")

    def _election(
        self, record: BrokerGroupRecord, before: JavaState, after: JavaState, live: Mapping[int, LiveReplica]
    ) -> Judgement:
        # Java elected because it had lost the old master, which does not count as alive any more, unless it won.
        seen = {
            broker_id: replica
            for broker_id, replica in live.items()
            if broker_id != before.master_broker_id or after.master_broker_id == broker_id
        }
        if before.master_broker_id is not None and after.master_broker_id == before.master_broker_id:
            record = replace(record, master_process_lost=True)
        decision = step(record, ElectMaster(), seen, self.settings)
        ours = decision.record.granted_master_id if decision.record is not None and decision.changed else None
        raised = after.master_epoch - before.master_epoch
        return Judgement(
            broker_name=record.broker_name,
            what=f"election in epoch {before.master_epoch}, set {sorted(before.sync_state_set)}",
            java=f"{_master(after.master_broker_id)}, epoch +{raised}",
            ours=_master(ours),
            why=f"{decision.why}; heard here: {_heard(seen)}",
            agrees=ours == after.master_broker_id,
        )

    def _alteration(
        self, record: BrokerGroupRecord, before: JavaState, after: JavaState, live: Mapping[int, LiveReplica]
    ) -> Judgement:
        request = AlterSyncStateSet(
            master_broker_id=before.master_broker_id,
            master_epoch=before.master_epoch,
            sync_state_set=after.sync_state_set,
            sync_state_set_epoch=before.sync_state_set_epoch,
        )
        decision = step(record, request, live, self.settings)
        what = f"set {sorted(before.sync_state_set)} to {sorted(after.sync_state_set)}"
        judgement = _as_java(record, decision, what=what, verb="accepted")
        return replace(judgement, agrees=judgement.agrees or after.sync_state_set == before.sync_state_set)

    def _cleaned(self, record: BrokerGroupRecord, broker_id: int, live: Mapping[int, LiveReplica]) -> Judgement:
        request = CleanBrokerData(
            broker_name=record.broker_name,
            broker_controller_ids_to_clean=str(broker_id),
        )
        decision = step(record, request, live, self.settings)
        return _as_java(record, decision, what=f"id {broker_id} cleaned", verb="cleaned")


def _as_java(record: BrokerGroupRecord, decision: Decision, *, what: str, verb: str) -> Judgement:
    """Return the judgement: whether our decision is Java's."""
    done = decision.code == ControllerCode.SUCCESS
    return Judgement(
        broker_name=record.broker_name,
        what=what,
        java=verb,
        ours=verb if done else f"refused ({int(decision.code)})",
        why=decision.why,
        agrees=done,
    )


def _master(broker_id: int | None) -> str:
    return "no master" if broker_id is None else f"master {broker_id}"


def _heard(live: Mapping[int, LiveReplica]) -> str:
    said = (f"{one.broker_id} at ({one.epoch}, {one.max_offset})" for one in sorted(live.values(), key=_by_id))
    return ", ".join(said) or "no broker"


def _by_id(replica: LiveReplica) -> int:
    return replica.broker_id
