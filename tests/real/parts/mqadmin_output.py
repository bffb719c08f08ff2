"""What the real mqadmin prints, read back into values. Anything that does not look as expected is an error, not a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPLICA = re.compile(
    r"ReplicaIdentity\{brokerName='(?P<name>[^']*)', brokerId=(?P<id>\d+), "
    r"brokerAddress='(?P<address>[^']*)', alive=(?P<alive>true|false)\}"
)
EPOCH_ENTRY = re.compile(r"EpochEntry\{epoch=(?P<epoch>\d+), startOffset=(?P<start>\d+), endOffset=(?P<end>-?\d+)\}")


class MqadminOutputError(Exception):
    """mqadmin printed something that this module does not understand."""


@dataclass(frozen=True)
class ShownReplica:
    """One line `InSyncReplica` or `NotInSyncReplica`."""

    broker_name: str
    broker_id: int
    address: str
    alive: bool


@dataclass(frozen=True)
class SyncStateSetShown:
    """The output of `mqadmin getSyncStateSet` for one broker name; the address of no master is None."""

    broker_name: str
    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    in_sync: tuple[ShownReplica, ...]
    not_in_sync: tuple[ShownReplica, ...]


@dataclass(frozen=True)
class EpochEntryShown:
    """One epoch of a broker's epoch file."""

    epoch: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True)
class BrokerEpochShown:
    """The output of `mqadmin getBrokerEpoch` for one broker; the NameServer's id of a master is 0."""

    cluster_name: str
    broker_name: str
    address: str
    broker_id: int
    entries: tuple[EpochEntryShown, ...]


def fields(text: str) -> dict[str, str]:
    """The `#Key<tab>value` lines."""
    pairs = re.findall(r"^#([A-Za-z]+)\t(.*)$", text, re.MULTILINE)
    return {key: value.strip() for key, value in pairs}


def required(values: dict[str, str], name: str, text: str) -> str:
    try:
        return values[name]
    except KeyError:
        raise MqadminOutputError(f"no line #{name} in:\n{text}") from None


def controller_metadata(text: str) -> dict[str, str]:
    """`mqadmin getControllerMetaData`: ControllerGroup, ControllerLeaderId, ControllerLeaderAddress; peers are left out."""
    values = fields(text)
    for name in ("ControllerGroup", "ControllerLeaderId", "ControllerLeaderAddress"):
        required(values, name, text)
    return values


def sync_state_sets(text: str) -> list[SyncStateSetShown]:
    """`mqadmin getSyncStateSet`: one block per broker name; an unknown name prints none."""
    return [_sync_state_set(block) for block in _blocks(text, "#brokerName\t")]


def _sync_state_set(block: str) -> SyncStateSetShown:
    values = fields(block)
    master_id, master_address = (required(values, name, block) for name in ("MasterBrokerId", "MasterAddr"))
    lines = block.splitlines()
    in_sync = tuple(_replica(line) for line in lines if line.startswith("InSyncReplica:"))
    counted = int(required(values, "SyncStateSetNums", block))
    if counted != len(in_sync):
        raise MqadminOutputError(f"#SyncStateSetNums says {counted}, {len(in_sync)} are listed:\n{block}")
    return SyncStateSetShown(
        broker_name=required(values, "brokerName", block),
        master_broker_id=None if master_id == "null" else int(master_id),
        master_address=None if master_address == "null" else master_address,
        master_epoch=int(required(values, "MasterEpoch", block)),
        sync_state_set_epoch=int(required(values, "SyncStateSetEpoch", block)),
        in_sync=in_sync,
        not_in_sync=tuple(_replica(line) for line in lines if line.startswith("NotInSyncReplica:")),
    )


def _replica(line: str) -> ShownReplica:
    found = REPLICA.search(line)
    if found is None:
        raise MqadminOutputError(f"no ReplicaIdentity in: {line}")
    return ShownReplica(found["name"], int(found["id"]), found["address"], found["alive"] == "true")


def broker_epochs(text: str) -> list[BrokerEpochShown]:
    """`mqadmin getBrokerEpoch`: one block per broker."""
    return [_broker_epoch(block) for block in _blocks(text, "#clusterName\t")]


def _broker_epoch(block: str) -> BrokerEpochShown:
    values = fields(block)
    entries = tuple(EpochEntryShown(*map(int, found.groups())) for found in EPOCH_ENTRY.finditer(block))
    if not entries:
        raise MqadminOutputError(f"no EpochEntry in:\n{block}")
    return BrokerEpochShown(
        cluster_name=required(values, "clusterName", block),
        broker_name=required(values, "brokerName", block),
        address=required(values, "brokerAddr", block),
        broker_id=int(required(values, "brokerId", block)),
        entries=entries,
    )


def _blocks(text: str, first_line: str) -> list[str]:
    return [first_line + block for block in text.split(first_line)[1:]]
