"""`kubectl brokergroup status`, `lag` and `history`: what a group is doing, and what it did; without a name, one line per group."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import (
    AllNamespaces,
    ForbiddenError,
    Format,
    GroupName,
    NotFoundError,
    OptionalGroupName,
    Output,
    Place,
    UsageError,
    Watch,
)
from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence, heartbeat, holder_of
from brokergroup_operator.kubectl.printing import age, aged, as_list, columns, in_units, print_objects, show, show_all
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster

# These conditions are True while something is wrong or under way; the others are False then.
ABNORMAL = frozenset(
    {
        "Reconciling", "Stalled", "Paused", "Hibernated", "BrokersStopped", "Fenced", "Unfenced", "EpochJump", "Recovering",
        "SeatLost", "CredentialsMissing", "MetadataDiverged", "DegradedDurability", "ConfigurationDrifted", "ClaimTerminating",
        "VolumeResizing", "ObjectiveInvalid", "TlsChanging", "ClientCertificateEnding",
    }
)  # fmt: skip
LIST_HEADER = ("NAME", "REPLICAS", "READY", "MASTER", "EPOCH", "IN-SYNC", "SAFE", "STATUS", "AGE")
WIDE_HEADER = ("VERSION", "DURABILITY", "LAST-FAILOVER", "TOOK")


@with_option_groups
def status(
    group: OptionalGroupName = None,
    *,
    all_namespaces: AllNamespaces = False,
    watch: Watch = False,
    output: Output = Format.TABLE,
    place: Place,
) -> None:
    """Master, epoch, SyncStateSet, members, conditions, last failover and running operations of a group; or all groups."""
    cluster, wide = place.cluster(), output is Format.WIDE
    if group is None:
        _list(cluster, everywhere=all_namespaces, watch=watch, output=output)
        return
    if all_namespaces:
        raise UsageError("status: a group has one namespace: expected GROUP or --all-namespaces, not both")
    if output.is_whole:
        print_objects(cluster.group(group), output)
        return

    def render(obj: JsonObject) -> str:
        return page(obj, operations_of(cluster, group), wide=wide, heard=heartbeat(cluster, obj))

    show(cluster, group, render, watch=watch)


def _list(cluster: "Cluster", *, everywhere: bool, watch: bool, output: Format) -> None:
    def render(groups: list[JsonObject]) -> str:
        return group_list(groups, everywhere=everywhere, wide=output is Format.WIDE)

    if watch:
        if output.is_whole:
            raise UsageError(f"status --watch: -o {output} shows no changes: expected -o table or -o wide")
        show_all(cluster, render, everywhere=everywhere, watch=True)
        return
    groups = cluster.groups(everywhere=everywhere)
    if print_objects(as_list(groups), output):
        return
    if not groups:
        typer.echo("No broker groups" + ("" if everywhere else f" in namespace {cluster.namespace}"), err=True)
        return
    typer.echo(render(groups))
    # One line for each operator that is gone: the status of its groups is out of date.
    of_each = {holder_of(group["metadata"]): group for group in groups}
    for heard in [heartbeat(cluster, group) for holder, group in sorted(of_each.items()) if holder]:
        if heard.presence is Presence.AWAY:
            typer.echo(f"! {heard.message}", err=True)


def operations_of(cluster: "Cluster", group: str) -> list[JsonObject]:
    """Return the group's operations; none if they may not be read, since the rest of the page is worth showing."""
    from brokergroup_operator.kubectl.cluster import BrokerGroupOperation

    try:
        listed = cluster.list(BrokerGroupOperation)
    except (ForbiddenError, NotFoundError):
        return []
    return [item for item in listed if item["spec"]["brokerGroupRef"]["name"] == group]


@with_option_groups
def lag(group: GroupName, *, watch: Watch = False, output: Output = Format.TABLE, place: Place) -> None:
    """Bytes that each member is behind the master, by the group's status, which follows in coarse steps."""
    cluster = place.cluster()
    if output.is_whole:
        print_objects(lags(cluster.group(group)), output)
    else:
        show(cluster, group, _lag_table, watch=watch)


def lags(group: JsonObject) -> list[JsonObject]:
    """Return what `lag -o json` prints."""
    keys = ("brokerId", "pod", "role", "state", "seat", "lagBytes")
    return [{key: member.get(key) for key in keys} for member in _members(group)]


def _lag_table(group: JsonObject) -> str:
    rows = [list((row | {"lagBytes": in_units(row["lagBytes"])}).values()) for row in lags(group)]
    return columns(("ID", "POD", "ROLE", "STATE", "SEAT", "LAG"), rows)


@with_option_groups
def history(group: GroupName, *, output: Output = Format.TABLE, place: Place) -> None:
    """Failovers and operations of a group, the latest first."""
    cluster = place.cluster()
    found = entries(cluster.group(group), operations_of(cluster, group))
    if print_objects(found, output):
        return
    if not found:
        typer.echo(f"{group}: no failover and no operation is remembered", err=True)
        return
    header = ("TIME", "WHAT", "OUTCOME", "FROM", "TO", "EPOCH", "MS", "MESSAGE", "INCIDENT")
    typer.echo(columns(header, [list(entry.values()) for entry in found]))


def entries(group: JsonObject, operations: list[JsonObject]) -> list[JsonObject]:
    """Return what `history -o json` prints; the keys are the columns."""
    status = group.get("status") or {}
    found = [_of_failover(item) for item in status.get("failovers") or []] + [
        _of_operation(item) for item in operations
    ]
    return sorted(found, key=lambda entry: str(entry["time"]), reverse=True)


def _of_failover(item: JsonObject) -> JsonObject:
    return {
        "time": item["startedAt"],
        "what": "Failover",
        "outcome": "Completed" if item["to"] else "NoMaster",
        "from": item["from"] or None,
        "to": item["to"] or None,
        "epoch": item["epoch"],
        "milliseconds": item["durationMilliseconds"],
        "message": item["trigger"],
        "incident": item.get("id"),
    }


def _of_operation(item: JsonObject) -> JsonObject:
    status = item.get("status") or {}
    result = status.get("result") or {}
    dry = " (dry run)" if item["spec"].get("dryRun") == "All" else ""
    return {
        "time": status.get("startedAt") or item["metadata"]["creationTimestamp"],
        "what": f"{item['spec']['type']}{dry}",
        "outcome": status.get("phase") or "Pending",
        "from": result.get("fromBrokerId"),
        "to": result.get("toBrokerId"),
        "epoch": result.get("epoch"),
        "milliseconds": result.get("milliseconds"),
        "message": f"{item['metadata']['name']}: {result.get('message', '')}",
        "incident": None,
    }


def condition(group: JsonObject, kind: str) -> JsonObject:
    """Return one condition of the status, or an empty one."""
    found: list[JsonObject] = (group.get("status") or {}).get("conditions") or []
    return next((item for item in found if item["type"] == kind), {})


def group_list(groups: list[JsonObject], *, everywhere: bool, wide: bool) -> str:
    """Return one line per group."""
    header = (("NAMESPACE",) if everywhere else ()) + LIST_HEADER + (WIDE_HEADER if wide else ())
    return columns(header, [_line(group, everywhere=everywhere, wide=wide) for group in groups])


def _line(group: JsonObject, *, everywhere: bool, wide: bool) -> list[object]:
    metadata, status = group["metadata"], group.get("status") or {}
    master = status.get("master") or {}
    cells: list[object] = [metadata["namespace"]] if everywhere else []
    cells += [
        metadata["name"],
        group["spec"].get("replicas"),
        status.get("readyReplicas"),
        master.get("brokerId"),
        master.get("epoch"),
        len((status.get("syncStateSet") or {}).get("brokerIds") or []),
        condition(group, "FailoverSafe").get("status"),
        state_word(group),
        age(metadata.get("creationTimestamp")),
    ]
    if wide:
        last = last_failover(status)
        took = f"{last['durationMilliseconds']}ms" if last else None
        version = group["spec"].get("version") or group["spec"].get("image")
        cells += [version, status.get("durability"), age(last.get("startedAt")), took]
    return cells


def state_word(group: JsonObject) -> str:
    """Return the group's state in a word: its phase, else why it is not Ready."""
    status = group.get("status") or {}
    if group["metadata"].get("deletionTimestamp"):
        return "Deleting"
    if phase := status.get("phase"):
        return str(phase)
    ready = condition(group, "Ready")
    return "Ready" if ready.get("status") == "True" else str(ready.get("reason") or "Unknown")


def page(group: JsonObject, operations: list[JsonObject], *, heard: Heartbeat, wide: bool = False) -> str:
    """Return the page of one group. `heard`: whether its operator is alive, so whether the status is current."""
    return "\n".join(_sections(group, operations, heard=heard, wide=wide))


def _sections(group: JsonObject, operations: list[JsonObject], *, heard: Heartbeat, wide: bool) -> Iterator[str]:
    yield from _head(group)
    yield f"{' ' if heard.proves else '!'} {heard.message}"
    if written := status_written(group["metadata"]):
        holds = "and holds" if heard.proves else "and nothing proves that it still holds"
        yield f"  status written {age(written)} ago, {holds}"
    if members := _members(group):
        yield ""
        yield _members_table(members, wide=wide)
        for member in members:
            if message := member.get("message"):
                yield f"! broker {member['brokerId']}: {aged(message)}"
    conditions = (group.get("status") or {}).get("conditions") or []
    if conditions:
        yield ""
        yield columns(("", "CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"), map(_condition_row, conditions))
    yield from _failover_lines(last_failover(group.get("status") or {}))
    rows = [_operation_row(item) for item in operations]
    if unfinished := [row for row in rows if row[2] not in ("Succeeded", "Failed", "Rejected")]:
        yield ""
        yield "Operations:"
        yield columns(("OPERATION", "TYPE", "PHASE", "AGE", "MESSAGE"), unfinished, indent="  ")


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
        yield "  master NONE"
    ids = ", ".join(str(broker_id) for broker_id in in_sync.get("brokerIds") or []) or "none"
    yield f"  SyncStateSet {ids} (epoch {in_sync.get('epoch', 0)})   ready {status.get('readyReplicas', 0)}/{spec.get('replicas')}"


def status_written(metadata: JsonObject) -> str:
    """Return when the status was last written, which is when it last changed; empty if the API server does not say."""
    entries = metadata.get("managedFields") or []
    return max((str(item.get("time") or "") for item in entries if item.get("subresource") == "status"), default="")


def _members(group: JsonObject) -> list[JsonObject]:
    return sorted((group.get("status") or {}).get("members") or [], key=lambda item: int(item["brokerId"]))


def _members_table(members: list[JsonObject], *, wide: bool) -> str:
    header = ["ID", "POD", "ROLE", "STATE", "SEAT", "LAG", "ADDRESS"]
    fields = ["brokerId", "pod", "role", "state", "seat", "lagBytes", "address"]
    if wide:
        header += ["POD-IP", "NODE", "ZONE", "CLAIM", "REVISION", "POD-UID"]
        fields += ["podIP", "node", "zone", "claim", "revision", "podUID"]
    return columns(header, [[member.get(name) for name in fields] for member in members])


def _condition_row(item: JsonObject) -> list[object]:
    mark = " " if item["status"] == ("False" if item["type"] in ABNORMAL else "True") else "!"
    since = age(item.get("lastTransitionTime"))
    return [mark, item["type"], item["status"], since, item["reason"], aged(item["message"])]


def last_failover(status: JsonObject) -> JsonObject:
    """Return the latest failover that the status has; empty if there was none."""
    return next(iter(status.get("failovers") or []), {})


def _failover_lines(last: JsonObject) -> Iterator[str]:
    if last:
        yield ""
        yield (
            f"Last failover: {last['trigger']}, broker {last['from']} -> {last['to']}, epoch {last['epoch']},"
            f" {last['durationMilliseconds']} ms, {age(last['startedAt'])} ago"
        )
        if last.get("phases"):
            yield "  " + "  ".join(f"{name} {value}" for name, value in last["phases"].items())


def _operation_row(item: JsonObject) -> list[object]:
    metadata, found = item["metadata"], item.get("status") or {}
    message = (found.get("result") or {}).get("message")
    phase = found.get("phase") or "Pending"
    return [metadata["name"], item["spec"]["type"], phase, age(metadata.get("creationTimestamp")), message]
