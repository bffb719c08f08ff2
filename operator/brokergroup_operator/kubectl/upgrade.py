"""`kubectl brokergroup upgrade`: what another version of RocketMQ would do to a group, and then the change of `spec.version`.

The table of versions is the plugin's own (`api/versions.py`). What only the operator knows, a limit to its list of versions, shows
in the group's conditions.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.api import names, versions
from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import DryRun, GroupName, Place, UsageError
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

To = Annotated[
    str, typer.Option("--to", metavar="VERSION", help="RocketMQ version, such as 5.5.0; an older one goes back")
]
ORDER = {
    "Switchover": "switchover away from {pod}, the master, then restart it, and wait until it is in sync",
    "Supervised": "wait for you: kubectl brokergroup switchover {group}; then restart {pod}, the master until then",
    "Restart": "restart {pod}, the master, as it is: nothing is written until it is back, or another is elected",
}


@with_option_groups
def upgrade(group: GroupName, to: To, place: Place, *, dry_run: DryRun = False) -> None:
    """Show what another version does to a group, and set it. A step that would lose state is refused with the reason."""
    from brokergroup_operator.kubectl.cluster import BrokerGroup

    cluster = place.cluster()
    found = cluster.group(group)
    refuse(found, to)
    for line in plan(found, to):
        typer.echo(line)
    # Also of a dry run: rules of the kind that only the API server knows.
    cluster.patch(BrokerGroup, group, {"spec": {"version": to}}, dry_run=dry_run)
    typer.echo("Nothing was changed." if dry_run else f"brokergroup.{names.GROUP}/{group} version {to}")


def refuse(group: JsonObject, to: str) -> None:
    """Raise UsageError, naming field, value and what is expected, if this group's brokers may not become that version."""
    name, spec = group["metadata"]["name"], group["spec"]
    cluster = (group["metadata"].get("labels") or {}).get(names.LABEL_ROCKETMQ_CLUSTER)
    if not versions.is_version(to):
        raise UsageError(f"--to is {to!r}, expected a version like 5.5.0")
    if cluster:
        raise UsageError(
            f"--to is {to!r}, expected in RocketMQCluster {cluster}, which writes the spec of {name}: set it there"
        )
    if spec.get("image"):
        raise UsageError(f"--to is {to!r}, expected no spec.image beside it: {name} has {spec['image']!r}")
    if spec.get("implementation", "Java") != "Java":
        raise UsageError(
            f"--to is {to!r}, expected implementation Java: {name} runs the Python replica of its operator"
        )
    if why := versions.why_it_never_runs(to):
        raise UsageError(f"--to is {to!r}, expected {versions.SERVED}: {why}")
    before = running(group)
    accepted = (group["metadata"].get("annotations") or {}).get(names.ANNOTATION_ACCEPT_VERSION)
    if before and accepted != to and (why := versions.why_no_downgrade(before, to, spec.get("config") or {})):
        accept = names.how_to_accept_version(group["metadata"]["namespace"], name, to)
        raise UsageError(f"--to is {to!r}, expected no such step back from {before}: {why}. To accept it: {accept}")


def running(group: JsonObject) -> str:
    """Return the version that the operator has seen in the group's pods; empty if none is known."""
    return str((group.get("status") or {}).get("version") or "")


def plan(group: JsonObject, to: str) -> "Iterator[str]":
    """Yield what the operator will do, in order."""
    name, before = group["metadata"]["name"], running(group)
    yield f"{name} runs {before or 'a version that is not known'}; spec.version {to}: {_kind(before, to)}"
    if before != to:
        for number, step in enumerate(_steps(group, to), start=1):
            yield f"  {number}. {step}"
    if versions.is_untested(to):
        newest = ".".join(map(str, versions.NEWEST_TESTED))
        yield f"  note: {to} is newer than {newest}, the newest that this plugin's release was tested with"
    if versions.numbers(to) <= versions.LAST_TO_ASK_FIRST < versions.numbers(before):
        yield f"  note: masters of {before} drop a slave before they ask, until the last of them is replaced"


def _kind(before: str, to: str) -> str:
    if before == to:
        # In the middle of an update the status has the newer version, and other pods have the older one.
        return "no pod that runs it is restarted"
    if not before:
        return "a rolling update"
    return "an upgrade" if versions.numbers(to) > versions.numbers(before) else "a step back, done as an upgrade is"


def _steps(group: JsonObject, to: str) -> "Iterator[str]":
    name, spec = group["metadata"]["name"], group["spec"]
    strategy = spec.get("updateStrategy") or {}
    members = (group.get("status") or {}).get("members") or []
    if (spec.get("maintenance") or {}).get("paused"):
        yield f"wait for you: the group is paused (kubectl brokergroup resume {name})"
    if (spec.get("maintenance") or {}).get("hibernated"):
        yield f"wait for you: the group is hibernated, and its pods run {to} once it wakes (kubectl brokergroup wake {name})"
        return
    if strategy.get("type") == "OnDelete":
        yield "wait for you: updateStrategy.type is OnDelete, so each pod changes once you delete it"
        return
    yield "wait until the group is FailoverSafe, and its turn among other groups has come"
    others = [one for one in members if one.get("role") != "master"]
    for one in sorted(others, key=lambda one: (one.get("state") != "Learning", one["brokerId"])):
        yield f"restart {one['pod']} and wait until it is in sync"
    for one in (one for one in members if one.get("role") == "master"):
        order = "Restart" if not others else strategy.get("masterUpdate", "Switchover")
        yield ORDER[order].format(pod=one["pod"], group=name)
