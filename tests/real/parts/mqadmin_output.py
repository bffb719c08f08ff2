"""Parse the real mqadmin's output into values. Unexpected output is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPLICA = re.compile(
    r"ReplicaIdentity\{brokerName='(?P<name>[^']*)', brokerId=(?P<id>\d+), "
    r"brokerAddress='(?P<address>[^']*)', alive=(?P<alive>true|false)\}"
)
EPOCH_ENTRY = re.compile(r"EpochEntry\{epoch=(?P<epoch>\d+), startOffset=(?P<start>\d+), endOffset=(?P<end>-?\d+)\}")

ERROR = re.compile(r"CODE: (?P<code>\d+) +DESC: (?P<remark>.*)")
SETTING = re.compile(r"^(?P<name>\S+) *= {0,2}(?P<value>.*)$")
MEMBER = re.compile(r"^\s*#Broker\t(?P<id>\d+)\t(?P<address>\S+)$", re.MULTILINE)


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


@dataclass(frozen=True)
class Refusal:
    """The code and remark that a server answered, out of the exception that mqadmin prints."""

    code: int
    remark: str


@dataclass(frozen=True)
class ElectionShown:
    """The output of `mqadmin electMaster`: the new master, and every member of its group by broker id."""

    cluster_name: str
    broker_name: str
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int
    members: dict[int, str]


@dataclass(frozen=True)
class SlaveShown:
    """One slave as `mqadmin haStatus` of its master shows it; the address is that of its HA connection."""

    address: str
    ack_offset: int
    diff: int
    in_sync: bool


@dataclass(frozen=True)
class HaStatusShown:
    """The output of `mqadmin haStatus` for a master."""

    master_address: str
    max_offset: int
    in_sync_slaves: int
    slaves: tuple[SlaveShown, ...]


@dataclass(frozen=True)
class ClusterLine:
    """One broker of `mqadmin clusterList`; the id of a master is 0."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    version: str


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


def controller_peers(text: str) -> list[str]:
    """The peers of `mqadmin getControllerMetaData`, as `id:host:port`."""
    return re.findall(r"^#Peer:\t(\S+)$", text, re.MULTILINE)


def refusal(text: str) -> Refusal | None:
    """Return the server's answer if mqadmin printed a refusal."""
    found = ERROR.search(text)
    return Refusal(int(found["code"]), found["remark"].strip()) if found is not None else None


def controller_config(text: str) -> dict[str, dict[str, str]]:
    """`mqadmin getControllerConfig`: the settings by controller address."""
    shown: dict[str, dict[str, str]] = {}
    for block in re.split(r"^=+(?=\S)", text, flags=re.MULTILINE)[1:]:
        address, *lines = block.splitlines()
        shown[address.strip("=")] = dict(_setting(line) for line in lines if line.strip())
    if not shown:
        raise MqadminOutputError(f"no controller in:\n{text}")
    return shown


def _setting(line: str) -> tuple[str, str]:
    found = SETTING.match(line)
    if found is None:
        raise MqadminOutputError(f"no setting in: {line}")
    return found["name"], found["value"].strip()


def election(text: str) -> ElectionShown:
    """`mqadmin electMaster` that succeeded."""
    values = fields(text)
    return ElectionShown(
        cluster_name=required(values, "ClusterName", text),
        broker_name=required(values, "BrokerName", text),
        master_address=required(values, "BrokerMasterAddr", text),
        master_epoch=int(required(values, "MasterEpoch", text)),
        sync_state_set_epoch=int(required(values, "SyncStateSetEpoch", text)),
        members={int(found["id"]): found["address"] for found in MEMBER.finditer(text)},
    )


def ha_statuses(text: str) -> list[HaStatusShown]:
    """`mqadmin haStatus`: one block per master; what a slave says of itself is left out."""
    return [_ha_status(block) for block in _blocks(text, "#MasterAddr\t") if "#MasterCommitLogMaxOffset" in block]


def _ha_status(block: str) -> HaStatusShown:
    values = fields(block)
    _, _, table = block.partition("#TransferFromWhere")
    slaves = tuple(_slave(line) for line in table.splitlines()[1:] if line.strip())
    if len(slaves) != int(required(values, "SlaveNum", block)):
        raise MqadminOutputError(f"#SlaveNum says {values['SlaveNum']}, {len(slaves)} are listed:\n{block}")
    return HaStatusShown(
        master_address=required(values, "MasterAddr", block),
        max_offset=int(required(values, "MasterCommitLogMaxOffset", block)),
        in_sync_slaves=int(required(values, "InSyncSlaveNum", block)),
        slaves=slaves,
    )


def _slave(line: str) -> SlaveShown:
    try:
        address, ack_offset, diff, _, status, _ = line.split()
        return SlaveShown(address, int(ack_offset), int(diff), status == "OK")
    except ValueError as error:
        raise MqadminOutputError(f"no slave in: {line}") from error


def cluster_list(text: str) -> list[ClusterLine]:
    """`mqadmin clusterList`: one line per broker; the load figures are left out."""
    _, _, table = text.partition("#ACTIVATED")
    return [_cluster_line(line) for line in table.splitlines() if line.strip()]


def _cluster_line(line: str) -> ClusterLine:
    try:
        cluster_name, broker_name, broker_id, address, version = line.split()[:5]
        return ClusterLine(cluster_name, broker_name, int(broker_id), address, version)
    except ValueError as error:
        raise MqadminOutputError(f"no broker in: {line}") from error


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
    """`mqadmin getBrokerEpoch`: one block per broker; one with an empty log may have no entries."""
    return [_broker_epoch(block) for block in _blocks(text, "#clusterName\t")]


def _broker_epoch(block: str) -> BrokerEpochShown:
    values = fields(block)
    entries = tuple(EpochEntryShown(*map(int, found.groups())) for found in EPOCH_ENTRY.finditer(block))
    if len(entries) != block.count("#Epoch"):
        raise MqadminOutputError(f"not every #Epoch has an EpochEntry in:\n{block}")
    return BrokerEpochShown(
        cluster_name=required(values, "clusterName", block),
        broker_name=required(values, "brokerName", block),
        address=required(values, "brokerAddr", block),
        broker_id=int(required(values, "brokerId", block)),
        entries=entries,
    )


def _blocks(text: str, first_line: str) -> list[str]:
    return [first_line + block for block in text.split(first_line)[1:]]
