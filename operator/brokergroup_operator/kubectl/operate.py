"""The verbs that change something: eight create a BrokerGroupOperation, six change `spec.maintenance`.

`COMMANDS` has them by name. Each operation verb is a dataclass of its own options; each switch is a row of a table.
`stop-broker` and `start-broker` change the list of brokers that are held stopped.
"""

import datetime as dt
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from brokergroup_operator.api import names
from brokergroup_operator.api.times import MomentError, told
from brokergroup_operator.api.times import moment as written
from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import (
    Confirmation,
    Confirmed,
    ConfirmedByName,
    DryRun,
    Format,
    GroupName,
    Member,
    NotFoundError,
    OperationFailedError,
    Output,
    Place,
    Unconfirmed,
    UsageError,
    WaitedTooLongError,
    confirm,
    seconds,
    whole_seconds,
)
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster

POLL_SECONDS = 0.3
# An operator takes an operation up at once, at the latest at its next resync: a longer silence has a cause worth naming.
SILENCE_SECONDS = 10.0
FINISHED = ("Succeeded", "Failed", "Rejected")
RELATIVE = re.compile(r"\+([0-9]+)([smh])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Verb:
    """An operation verb: its docstring is its help, its fields are its own options."""

    confirmation: ClassVar[type[Confirmation]] = Unconfirmed

    @property
    def danger(self) -> str:
        """What a person confirms; empty if nothing can be lost."""
        return ""

    def section(self, group: str) -> JsonObject:
        """Return the section of the operation's spec. Raise UsageError if the options contradict each other."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Switchover(Verb):
    """Make another member master. Refused while the group is not FailoverSafe."""

    to: Annotated[int | None, typer.Option("--to", help="Broker id of the next master; default: the best", min=1)] = (
        None
    )
    at: Annotated[
        str | None, typer.Option("--at", help="Not before: RFC 3339 (2030-01-02T03:04:05Z) or +30s, +10m, +2h")
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            help="Not begun after this time, written as for --at. Default: --at plus --deadline; none without --at",
        ),
    ] = None
    deadline: Annotated[
        int,
        typer.Option(
            "--deadline", parser=whole_seconds, metavar="DURATION", help="How long it may take: 1s to 1h, or seconds"
        ),
    ] = 60

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        to = {} if self.to is None else {"toBrokerId": self.to}
        return {"deadlineSeconds": self.deadline, **to, **window(self.at, self.until, now=dt.datetime.now(dt.UTC))}


def window(at: str | None, until: str | None, *, now: dt.datetime) -> dict[str, str]:
    """Return notBefore and notAfter. Raise UsageError for a time in the past, or an end that is not after the beginning."""
    begins = None if at is None else _moment("--at", at, now)
    ends = None if until is None else _moment("--until", until, now)
    if begins is not None and ends is not None and ends <= begins:
        raise UsageError(f"--until {until!r} is {told(ends)}: expected a time after --at, {told(begins)}")
    fields = {"notBefore": begins, "notAfter": ends}
    return {field: told(then) for field, then in fields.items() if then is not None}


def _moment(option: str, text: str, now: dt.datetime) -> dt.datetime:
    """Return a time to come, absolute with an offset, or relative to now."""
    if (relative := RELATIVE.fullmatch(text)) is not None:
        try:
            then = now + dt.timedelta(seconds=int(relative[1]) * UNIT_SECONDS[relative[2]])
        except (OverflowError, ValueError) as error:
            raise UsageError(f"{option} {text[:40]!r}: expected a time before the year 10000") from error
    else:
        try:
            then = written(text)
        except MomentError as error:
            raise UsageError(f"{option} {error}, or +30s, +10m, +2h") from error
    if then < now:
        raise UsageError(
            f"{option} {text!r} is in the past: it is {told(now)}; expected a time to come, or +30s, +10m, +2h"
        )
    return then


@dataclass(frozen=True, kw_only=True)
class Restart(Verb):
    """Restart members one by one: slaves first, the master after a switchover."""

    broker_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[BROKER-ID]...", help="Which members; default: all")
    ] = None

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        return {"brokerIds": list(self.broker_ids)} if self.broker_ids else {}


@dataclass(frozen=True, kw_only=True)
class OfOneMember(Verb):
    """A verb with a broker id."""

    confirmation = Confirmed
    broker_id: Member

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        return {"brokerId": self.broker_id}


@dataclass(frozen=True, kw_only=True)
class Rebuild(OfOneMember):
    """Delete a member's volume WITH ITS DATA; a new member with a new broker id copies the master."""

    @property
    def danger(self) -> str:
        return f"This deletes the volume of broker {self.broker_id} with its data"


@dataclass(frozen=True, kw_only=True)
class Decommission(OfOneMember):
    """Remove a member for good. Where spec.replicas still wants it, a new one takes its place."""

    @property
    def danger(self) -> str:
        return f"This removes broker {self.broker_id} for good"


@dataclass(frozen=True, kw_only=True)
class Elect(Verb):
    """Make a replica master that may lack acknowledged messages. There is no --yes: the name must be typed or --confirm given."""

    confirmation = ConfirmedByName
    to: Annotated[int, typer.Option("--to", help="Broker id of the next master", min=1)]
    unclean: Annotated[bool, typer.Option("--unclean", help="Accept a replica that may lack acknowledged messages")] = (
        False
    )
    yes_lose_data: Annotated[
        bool, typer.Option("--yes-lose-data", help="Accept that those messages are lost for good")
    ] = False

    @property
    def danger(self) -> str:
        return f"Acknowledged messages that broker {self.to} lacks are LOST"

    def section(self, group: str) -> JsonObject:
        if not (self.unclean and self.yes_lose_data):
            clean = "a clean change of master is kubectl brokergroup switchover"
            raise UsageError(f"elect: expected --unclean and --yes-lose-data; {clean}")
        return {"toBrokerId": self.to, "acknowledgeDataLoss": group}


@dataclass(frozen=True, kw_only=True)
class Drill(Verb):
    """Rehearse a failover: the master moves away and back, or (--kill-master) is killed. Says how long each change took."""

    confirmation = Confirmed
    kill_master: Annotated[
        bool,
        typer.Option("--kill-master", help="Delete the master's pod without grace, instead of a planned switchover"),
    ] = False

    @property
    def danger(self) -> str:
        return "This kills the master: writes stand still until another is elected" if self.kill_master else ""

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        return {"kind": "KillMaster" if self.kill_master else "Switchover"}


@dataclass(frozen=True, kw_only=True)
class Backup(Verb):
    """Copy the store of a slave in sync to a claim, while that slave is stopped, or take VolumeSnapshots of its claims."""

    confirmation = Confirmed
    claim: Annotated[str | None, typer.Option("--claim", help="The PersistentVolumeClaim that receives the copy")] = (
        None
    )
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Take a VolumeSnapshot of each claim instead, named after the operation")
    ] = False
    snapshot_class: Annotated[
        str | None,
        typer.Option("--snapshot-class", help="Its VolumeSnapshotClass; implies --snapshot; default: the driver's own"),
    ] = None
    broker: Annotated[
        int | None, typer.Option("--broker", help="Broker id of the slave; default: the one with the highest id", min=1)
    ] = None
    stop_master: Annotated[
        bool, typer.Option("--stop-master", help="Of a group with one voting member: stop its master for the copy")
    ] = False

    @property
    def danger(self) -> str:
        return "This stops the master: nothing can be sent until the copy is done" if self.stop_master else ""

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        named = {} if self.broker is None else {"brokerId": self.broker}
        return {**self._whereto(), **named, **({"stopMaster": True} if self.stop_master else {})}

    def _whereto(self) -> JsonObject:
        by_snapshot = self.snapshot or self.snapshot_class is not None
        if by_snapshot == (self.claim is not None):
            given = f"--claim {self.claim} and a snapshot" if by_snapshot else "neither --claim nor --snapshot"
            raise UsageError(f"the backup has {given}, expected one of --claim NAME and --snapshot")
        if not by_snapshot:
            return {"claim": {"name": self.claim}}
        return {"snapshot": {} if self.snapshot_class is None else {"className": self.snapshot_class}}


@dataclass(frozen=True, kw_only=True)
class Retire(Verb):
    """Remove a whole group: it takes no more sends, and is deleted once its consumers have read everything."""

    confirmation = Confirmed
    abandon_topic: Annotated[
        list[str] | None,
        typer.Option("--abandon-topic", metavar="TOPIC", help="Give up unread messages of this topic (repeatable)"),
    ] = None
    abandon_consumer_group: Annotated[
        list[str] | None,
        typer.Option(
            "--abandon-consumer-group", metavar="NAME", help="Do not wait for this consumer group (repeatable)"
        ),
    ] = None

    @property
    def danger(self) -> str:
        given_up = f"; unread messages of {', '.join(self.abandon_topic)} are LOST" if self.abandon_topic else ""
        groups = ", ".join(self.abandon_consumer_group or ())
        not_waited = f"; {groups} may LOSE messages, as nothing waits until they are read" if groups else ""
        return f"This stops sends to the group and deletes it once everything is read{given_up}{not_waited}"

    def section(self, group: str) -> JsonObject:  # noqa: ARG002
        lists = {"abandonTopics": self.abandon_topic, "abandonConsumerGroups": self.abandon_consumer_group}
        return {field: list(names_) for field, names_ in lists.items() if names_}


@dataclass(frozen=True)
class Switch:
    """A verb that sets one switch of `spec.maintenance`."""

    maintenance: dict[str, bool]
    # The state that the printed line names.
    word: str
    help: str
    danger: str = ""


SWITCHES = {
    "pause": Switch(
        {"paused": True}, "paused",
        "Leave the group's pods, claims and configuration alone until it is resumed. Failovers go on.",
    ),
    "resume": Switch({"paused": False}, "resumed", "End a pause: what differs from the spec is put right."),
    "hibernate": Switch(
        {"hibernated": True}, "hibernating",
        "Stop all pods of the group; its data stays. Nothing can be sent or consumed until it is woken.",
        "This stops every pod of the group: nothing can be sent or consumed until it is woken",
    ),
    "wake": Switch(
        {"hibernated": False}, "waking",
        "Start the pods of a hibernated group again, on their own volumes, with their own broker ids.",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How an operation is asked for: the options of every operation verb."""

    dry_run: DryRun = False
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 1 if it is not a success")] = False
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", parser=seconds, metavar="DURATION", help="How long --wait waits: 100s, 5m, or plain seconds"
        ),
    ] = 600.0
    output: Output = Format.TABLE


def _operation_command(kind: type[Verb]) -> Callable[..., None]:
    def run(*, group: str, verb: Verb, confirmation: Confirmation, asking: Asking, place: Place) -> None:
        section = verb.section(group)
        if verb.danger and not asking.dry_run:
            confirm(group, verb.danger, confirmation)
        ask(place.cluster(), operation(group, kind.__name__, section, dry_run=asking.dry_run), asking)

    run.__annotations__ |= {"group": GroupName, "verb": kind, "confirmation": kind.confirmation}
    run.__doc__ = kind.__doc__
    return with_option_groups(run)


def _switch_command(switch: Switch) -> Callable[..., None]:
    def run(*, group: str, confirmation: Confirmation, place: Place) -> None:
        from brokergroup_operator.kubectl.cluster import BrokerGroup

        if switch.danger:
            confirm(group, switch.danger, confirmation)
        place.cluster().patch(BrokerGroup, group, {"spec": {"maintenance": switch.maintenance}})
        typer.echo(f"brokergroup.{names.GROUP}/{group} {switch.word}")

    run.__annotations__ |= {"group": GroupName, "confirmation": Confirmed if switch.danger else Unconfirmed}
    run.__doc__ = switch.help
    return with_option_groups(run)


@with_option_groups
def _stop_broker(group: GroupName, broker_id: Member, place: Place) -> None:
    """Stop one member's broker and keep its pod and volumes, so that its disk can be looked at. A master hands over first."""
    cluster = place.cluster()
    found = cluster.group(group)
    members = [int(one["brokerId"]) for one in (found.get("status") or {}).get("members") or []]
    if broker_id not in members:
        expected = ", ".join(map(str, members)) or "none yet"
        raise UsageError(f"BROKER-ID is {broker_id}, which is no member of {group}: expected one of {expected}")
    _hold(cluster, found, {*stopped_in(found), broker_id})
    typer.echo(
        f"brokergroup.{names.GROUP}/{group} broker {broker_id} is to be stopped; see: kubectl brokergroup explain {group}"
    )


@with_option_groups
def _start_broker(group: GroupName, broker_id: Member, place: Place) -> None:
    """Start a broker again that is held stopped; it comes back as a slave."""
    cluster = place.cluster()
    found = cluster.group(group)
    if broker_id not in (held := stopped_in(found)):
        listed = ", ".join(map(str, sorted(held))) or "none"
        raise UsageError(f"BROKER-ID is {broker_id}, which is not held stopped in {group}: expected one of {listed}")
    _hold(cluster, found, held - {broker_id})
    typer.echo(f"brokergroup.{names.GROUP}/{group} broker {broker_id} starts again")


def stopped_in(group: JsonObject) -> set[int]:
    """Return the broker ids that a BrokerGroup's spec holds stopped."""
    return set((group["spec"].get("maintenance") or {}).get("stoppedBrokers") or [])


def _hold(cluster: "Cluster", found: JsonObject, broker_ids: set[int]) -> None:
    """Write the list to the version that was read: another change meanwhile is a conflict, and not undone."""
    from brokergroup_operator.kubectl.cluster import BrokerGroup

    patch = {
        "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
        "spec": {"maintenance": {"stoppedBrokers": sorted(broker_ids)}},
    }
    cluster.patch(BrokerGroup, found["metadata"]["name"], patch)


VERBS = (Switchover, Restart, Rebuild, Decommission, Elect, Drill, Backup, Retire)
COMMANDS = {kind.__name__.lower(): _operation_command(kind) for kind in VERBS} | {
    name: _switch_command(switch) for name, switch in SWITCHES.items()
}
COMMANDS |= {"stop-broker": _stop_broker, "start-broker": _start_broker}


def operation(group: str, kind: str, section: JsonObject, *, dry_run: bool = False) -> JsonObject:
    """Return the BrokerGroupOperation to create."""
    spec: JsonObject = {"brokerGroupRef": {"name": group}, "type": kind, kind.lower(): section}
    if dry_run:
        # A rehearsed plan is of no use to the history.
        spec |= {"dryRun": "All", "ttlSecondsAfterFinished": 300}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "BrokerGroupOperation",
        "metadata": {"generateName": f"{group}-{kind.lower()}-", "labels": {names.LABEL_BROKER_GROUP: group}},
        "spec": spec,
    }


def ask(cluster: "Cluster", wanted: JsonObject, asking: Asking) -> None:
    """Create the operation and print it; with --wait or --dry-run, wait for its end first: the answer of a dry run is the plan.

    Raise NotFoundError without that group; of a wait, OperationFailedError without success, WaitedTooLongError at the timeout.
    """
    from brokergroup_operator.kubectl.printing import print_objects

    cluster.group(wanted["spec"]["brokerGroupRef"]["name"])
    created = cluster.create(wanted)
    name = created["metadata"]["name"]
    if not (asking.wait or asking.dry_run):
        if not print_objects(created, asking.output):
            typer.echo(f"brokergroupoperation.{names.GROUP}/{name} created")
        return
    if not asking.output.is_whole:
        typer.echo(f"brokergroupoperation.{names.GROUP}/{name} created, waiting", err=True)
    finished = wait_for(cluster, name, asking.timeout)
    if not print_objects(finished, asking.output):
        _print_result(finished)
    status = finished["status"]
    if status["phase"] != "Succeeded":
        raise OperationFailedError(f"{name}: {status['phase']}: {(status.get('result') or {}).get('message', '')}")


def wait_for(cluster: "Cluster", name: str, timeout_seconds: float) -> JsonObject:
    """Return the finished operation; meanwhile print each change of its phase or message on standard error."""
    from brokergroup_operator.kubectl.cluster import BrokerGroupOperation
    from brokergroup_operator.kubectl.operator_pods import why_nothing_acts

    begun = time.monotonic()
    last = idle = ""
    while True:
        try:
            found = cluster.get(BrokerGroupOperation, name)
        except NotFoundError as error:
            deleted = f"{name}: it was deleted before its end was seen; last: {last or 'Pending'}"
            raise OperationFailedError(deleted) from error
        status = found.get("status") or {}
        phase, message = status.get("phase") or "Pending", (status.get("result") or {}).get("message") or ""
        if phase in FINISHED:
            return found
        if (said := f"{phase}: {message}" if message else phase) != last:
            last = said
            typer.echo(f"  {said}", err=True)
        waited_seconds = time.monotonic() - begun
        if status:
            idle = ""
        elif not idle and waited_seconds >= SILENCE_SECONDS:
            idle = why_nothing_acts(cluster)
            typer.echo(f"  {idle}", err=True)
        if waited_seconds >= timeout_seconds:
            last = f"{last}; {idle}" if idle else last
            raise WaitedTooLongError(f"{name}: not over after {timeout_seconds:g} s, it goes on; last: {last}")
        time.sleep(POLL_SECONDS)


def _print_result(finished: JsonObject) -> None:
    result = finished["status"].get("result") or {}
    typer.echo(f"{finished['status']['phase']}: {result.get('message', '')}")
    for number, step in enumerate(result.get("plan") or [], start=1):
        typer.echo(f"  {number}. {step}")
    if result.get("phases"):
        typer.echo("  " + "  ".join(f"{name} {value} ms" for name, value in result["phases"].items()))
