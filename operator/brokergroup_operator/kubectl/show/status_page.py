"""The page of `kubectl brokergroup status`, as text: pure, from the objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokergroup_operator.kubectl.show.printing import age, aged, columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.kubectl.show.its_operator import Heartbeat

JsonObject = dict[str, Any]
# These say that something is wrong, or under way, while they are True; of the others False does.
ABNORMAL = frozenset(
    {
        "Reconciling", "Stalled", "Paused", "Hibernated", "Fenced", "Unfenced", "EpochJump", "Recovering",
        "SeatLost", "CredentialsMissing", "MetadataDiverged", "DegradedDurability", "ConfigurationDrifted", "ClaimTerminating",
        "VolumeResizing", "ObjectiveInvalid",
    }
)  # fmt: skip
LIST_HEADER = ("NAME", "REPLICAS", "READY", "MASTER", "EPOCH", "IN-SYNC", "SAFE", "STATUS", "AGE")
WIDE_HEADER = ("VERSION", "DURABILITY", "LAST-FAILOVER", "TOOK")


def condition(group: JsonObject, kind: str) -> JsonObject:
    """One condition, or an empty one."""
    found: list[JsonObject] = (group.get("status") or {}).get("conditions") or []
    return next((item for item in found if item["type"] == kind), {})


def group_list(groups: list[JsonObject], *, everywhere: bool, wide: bool) -> str:
    """One line per group."""
    header = (("NAMESPACE",) if everywhere else ()) + LIST_HEADER + (WIDE_HEADER if wide else ())
    return columns(header, [_line(group, everywhere=everywhere, wide=wide) for group in groups])


def _line(group: JsonObject, *, everywhere: bool, wide: bool) -> list[object]:
    metadata, status = group["metadata"], group.get("status") or {}
    cells: list[object] = [metadata["namespace"]] if everywhere else []
    cells += [
        metadata["name"],
        group["spec"].get("replicas"),
        status.get("readyReplicas"),
        (status.get("master") or {}).get("brokerId"),
        status.get("masterEpoch"),
        len((status.get("syncStateSet") or {}).get("brokerIds") or []),
        condition(group, "FailoverSafe").get("status"),
        state_word(group),
        age(metadata.get("creationTimestamp")),
    ]
    if wide:
        last = status.get("lastFailover") or {}
        took = f"{last['durationMilliseconds']}ms" if last else None
        version = group["spec"].get("version") or group["spec"].get("image")
        cells += [version, status.get("durability"), age(last.get("startedAt")), took]
    return cells


def state_word(group: JsonObject) -> str:
    """What a person wants to know first."""
    status = group.get("status") or {}
    if group["metadata"].get("deletionTimestamp"):
        return "Deleting"
    if phase := status.get("phase"):
        return str(phase)
    ready = condition(group, "Ready")
    return "Ready" if ready.get("status") == "True" else str(ready.get("reason") or "Unknown")


def page(group: JsonObject, operations: list[JsonObject], *, heard: Heartbeat, wide: bool = False) -> str:
    """All of one group. `heard`: the operator's heartbeat, which tells how old all of this is."""
    return "\n".join(_sections(group, operations, heard=heard, wide=wide))


def _sections(group: JsonObject, operations: list[JsonObject], *, heard: Heartbeat, wide: bool) -> Iterator[str]:
    yield from _head(group)
    yield from _operator(group["metadata"], heard)
    members = (group.get("status") or {}).get("members") or []
    if members:
        yield ""
        yield members_table(group, wide=wide)
        for member in sorted(members, key=lambda item: int(item["brokerId"])):
            if message := member.get("message"):
                yield f"! broker {member['brokerId']}: {aged(message)}"
    conditions = (group.get("status") or {}).get("conditions") or []
    if conditions:
        yield ""
        yield columns(
            ("", "CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"),
            [
                (
                    _mark(item),
                    item["type"],
                    item["status"],
                    age(item.get("lastTransitionTime")),
                    item["reason"],
                    aged(item["message"]),
                )
                for item in conditions
            ],
        )
    yield from _last_failover(group)
    unfinished = [item for item in operations if not is_finished(item)]
    if unfinished:
        yield ""
        yield "Operations:"
        yield operations_table(unfinished, indent="  ")


def _head(group: JsonObject) -> Iterator[str]:
    metadata, spec, status = group["metadata"], group["spec"], group.get("status") or {}
    master, in_sync = status.get("master") or {}, status.get("syncStateSet") or {}
    yield f"{metadata['namespace']}/{metadata['name']}   {state_word(group)}   {age(metadata.get('creationTimestamp'))} old"
    yield (
        f"  brokerName {spec.get('brokerName') or metadata['name']}   {spec.get('implementation', '')}"
        f" {spec.get('version') or spec.get('image') or ''}".rstrip()
        + f"   durability {status.get('durability') or spec.get('durability') or 'unknown'}"
    )
    if master:
        since = f", since {master['since']}" if master.get("since") else ""
        yield f"  master broker {master['brokerId']} ({master.get('pod') or master.get('address')}), epoch {master['epoch']}{since}"
    else:
        yield f"  master NONE, epoch {status.get('masterEpoch', 0)}"
    ids = ", ".join(str(broker_id) for broker_id in in_sync.get("brokerIds") or []) or "nobody"
    yield f"  SyncStateSet {ids} (epoch {in_sync.get('epoch', 0)})   ready {status.get('readyReplicas', 0)}/{spec.get('replicas')}"


def _operator(metadata: JsonObject, heard: Heartbeat) -> Iterator[str]:
    """An operator that is gone says nothing any more, and all others leave its groups alone: what is shown stays as it was."""
    from brokergroup_operator.kubectl.show.its_operator import status_written

    yield f"{' ' if heard.proves else '!'} {heard.message}"
    if written := status_written(metadata):
        holds = "and holds" if heard.proves else "and nothing proves that it still holds"
        yield f"  status written {age(written)} ago, {holds}"


def _mark(item: JsonObject) -> str:
    good = "False" if item["type"] in ABNORMAL else "True"
    return " " if item["status"] == good else "!"


def members_table(group: JsonObject, *, wide: bool = False) -> str:
    """The members by broker id."""
    header = ["ID", "POD", "ROLE", "STATE", "SEAT", "LAG", "ADDRESS"]
    fields = ["brokerId", "pod", "role", "state", "seat", "lagBytes", "address"]
    if wide:
        header += ["POD-IP", "NODE", "ZONE", "CLAIM", "REVISION", "POD-UID"]
        fields += ["podIP", "node", "zone", "claim", "revision", "podUID"]
    members = sorted((group.get("status") or {}).get("members") or [], key=lambda item: int(item["brokerId"]))
    return columns(header, [[member.get(name) for name in fields] for member in members])


def _last_failover(group: JsonObject) -> Iterator[str]:
    last = (group.get("status") or {}).get("lastFailover")
    if last:
        yield ""
        yield (
            f"Last failover: {last['trigger']}, broker {last['from']} -> {last['to']}, epoch {last['epoch']},"
            f" {last['durationMilliseconds']} ms, {age(last['startedAt'])} ago"
        )
        if last.get("phases"):
            yield "  " + "  ".join(f"{name} {value}" for name, value in last["phases"].items())


def is_finished(operation: JsonObject) -> bool:
    return (operation.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Rejected")


def operations_table(operations: list[JsonObject], *, indent: str = "") -> str:
    rows = []
    for item in operations:
        status = item.get("status") or {}
        rows.append(
            (
                item["metadata"]["name"],
                item["spec"]["type"],
                status.get("phase") or "Pending",
                age(item["metadata"].get("creationTimestamp")),
                (status.get("result") or {}).get("message"),
            )
        )
    return columns(("OPERATION", "TYPE", "PHASE", "AGE", "MESSAGE"), rows, indent=indent)
