"""What a Java controller and its brokers say, as values; pure. ``read.py`` fills them, everything else judges them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from controller_core.model import BrokerGroupRecord, Replica

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.controller_protocol import ReplicasInfo

MIGRATED = "migrated"
"""The register check code of a migrated id is not to be had from Java: ``<address>;migrated`` stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaState:
    """One group in a Java controller's tables, as far as 1006 shows it. Who is alive is perishable and not compared."""

    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    alive: frozenset[int] = field(default=frozenset(), compare=False)

    def describe(self) -> str:
        """One line for people."""
        members = ",".join(str(one) for one in sorted(self.sync_state_set))
        return f"master={self.master_broker_id} epoch={self.master_epoch} set={{{members}}}@{self.sync_state_set_epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSaid:
    """What one broker says of itself: 26, 28, 907 and 1007. ``slave_id`` is its broker id, None where it acts as master."""

    address: str
    cluster_name: str = ""
    broker_name: str = ""
    slave_id: int | None = None
    listed_controllers: str = ""
    looks_up_controllers: bool = False
    version: str = ""
    last_epoch: int = 0
    max_offset: int = 0
    acts_as_master: bool = False
    in_sync_slaves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaGroup:
    """One group as everybody sees it. ``brokers`` holds a text instead where a broker did not answer: why."""

    state: JavaState
    next_broker_id: int
    cluster_names: frozenset[str] = frozenset()
    brokers: Mapping[int, BrokerSaid | str] = field(default_factory=dict)
    # The state was the same a moment later.
    steady: bool = True

    @property
    def cluster_name(self) -> str:
        """The cluster the brokers say they belong to; empty where they disagree or none said."""
        said = {one.cluster_name for one in self.brokers.values() if isinstance(one, BrokerSaid)} or self.cluster_names
        return next(iter(said)) if len(said) == 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything that was read in one go."""

    controller: str
    leader: str
    peers: tuple[str, ...]
    groups: tuple[JavaGroup, ...]
    # Names that were asked for or are at the NameServer, and that the controller does not know.
    unknown: tuple[str, ...] = ()
    # Groups at the NameServers that the controller decides for too, and that were not asked for.
    others: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Every address by which this controller group is known. (jRaft names its Raft addresses as peers.)"""
        return tuple(dict.fromkeys((self.leader, self.controller, *self.peers)))


def state_of(broker_name: str, info: ReplicasInfo) -> JavaState:
    """The answer to 1006 as a state."""
    replicas = (*info.in_sync_replicas, *info.not_in_sync_replicas)
    return JavaState(
        broker_name=broker_name,
        addresses={one.broker_id: one.broker_address or "" for one in sorted(replicas, key=lambda one: one.broker_id)},
        master_broker_id=info.master_broker_id,
        master_epoch=info.master_epoch,
        sync_state_set=frozenset(one.broker_id for one in info.in_sync_replicas),
        sync_state_set_epoch=info.sync_state_set_epoch,
        alive=frozenset(one.broker_id for one in replicas if one.alive),
    )


def record_of(state: JavaState, *, cluster_name: str, next_broker_id: int = 1) -> BrokerGroupRecord:
    """The record that says the same. Every id counts as registered: a disk may know it, and an election must ask for it."""
    return BrokerGroupRecord(
        cluster_name=cluster_name,
        broker_name=state.broker_name,
        next_broker_id=max([next_broker_id, *(broker_id + 1 for broker_id in state.addresses)]),
        replicas={
            broker_id: Replica(broker_id, f"{address};{MIGRATED}", address, registered=True)
            for broker_id, address in state.addresses.items()
        },
        master_broker_id=state.master_broker_id,
        master_epoch=state.master_epoch,
        sync_state_set=state.sync_state_set,
        sync_state_set_epoch=state.sync_state_set_epoch,
    )


def with_set_epoch_above(record: BrokerGroupRecord, margin: int) -> BrokerGroupRecord:
    """The same with a SyncStateSet epoch that is surely above the brokers', so that the master takes it at its next poll."""
    return replace(record, sync_state_set_epoch=record.sync_state_set_epoch + margin)
