"""What a pass decided: voluntary steps, and typed actions, each with its reason. A plan is a value; `apply.py` carries it out.

Every action can be repeated and lost without harm: it names the state it wants or the very object (uid, resourceVersion)
it was decided on. So the operator may die between any two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from brokergroup_operator.api.broker_keys import shown
from brokergroup_operator.api.brokergroup_status import ConditionStatus, Reason
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.reconcile.other_groups import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.observe.group_view import RestoredStore
    from brokergroup_operator.reconcile.identity import Member


@dataclass(frozen=True, kw_only=True)
class Note:
    """A Kubernetes Event about the group, once the step before it is durable."""

    reason: str
    message: str
    # The pod that it is about.
    related: str = ""
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Action:
    """One effect. `reason` says why, in a log line."""

    reason: str
    note: Note | None = None

    @property
    def target(self) -> str:
        return ""

    @property
    def notes(self) -> tuple[Note, ...]:
        return () if self.note is None else (self.note,)


@dataclass(frozen=True, kw_only=True)
class _OfObject(Action):
    resource: Resource
    object: JsonObject

    @property
    def target(self) -> str:
        return f"{self.resource.kind} {self.object['metadata']['name']}"


@dataclass(frozen=True, kw_only=True)
class _OfName(Action):
    resource: Resource
    name: str

    @property
    def target(self) -> str:
        return f"{self.resource.kind} {self.name}"


@dataclass(frozen=True, kw_only=True)
class _OfBroker(Action):
    broker_id: int
    pod: str
    values: Mapping[str, str]

    @property
    def target(self) -> str:
        return f"{self.pod} {','.join(sorted(self.values))}"


@dataclass(frozen=True, kw_only=True)
class ReserveBrokerId(Action):
    """Ask the controller plane to keep this broker id for this pod name, durably, before the pod exists."""

    pod_name: str
    broker_id: int

    @property
    def target(self) -> str:
        return f"{self.pod_name} id {self.broker_id}"


@dataclass(frozen=True, kw_only=True)
class BeginRestored(Action):
    """Ask the controller plane to begin the record of a new group with this store; nothing to do if it began with it."""

    restored: RestoredStore

    @property
    def target(self) -> str:
        return f"{self.restored.pod_name} from {self.restored.backup}"


@dataclass(frozen=True, kw_only=True)
class ApplyObject(_OfObject):
    """Server-side apply of exactly the fields we want to own."""

    # What is applied if the API server finds `object` invalid: it asks for something that another one may have taken.
    otherwise: JsonObject | None = None
    # What is applied where the API server refuses `object`: that refusal is reported all the same, and `object` is asked for again.
    meanwhile: JsonObject | None = None


@dataclass(frozen=True, kw_only=True)
class MakeSecret(Action):
    """Create it, or leave the one that is there as it is: we may not read Secrets."""

    object: JsonObject = field(repr=False)

    @property
    def target(self) -> str:
        return f"Secret {self.object['metadata']['name']}"


@dataclass(frozen=True, kw_only=True)
class SetRole(Action):
    """Put the labels of role and broker id on the pod with this uid."""

    pod: str
    uid: str
    role: str
    broker_id: int

    @property
    def target(self) -> str:
        return f"{self.pod} {self.role}"


@dataclass(frozen=True, kw_only=True)
class DeleteObject(_OfName):
    """Delete the object with this uid and no other of its name; one that has a `successor` only if the API would take that."""

    uid: str
    successor: JsonObject | None = None
    # Of a pod: because it is outdated.
    is_update: bool = False

    @classmethod
    def of(cls, resource: Resource, obj: JsonObject, reason: str, note: Note | None = None) -> Self:
        metadata = obj["metadata"]
        uid = str(metadata.get("uid", ""))
        return cls(reason=reason, resource=resource, name=str(metadata["name"]), uid=uid, note=note)


@dataclass(frozen=True, kw_only=True)
class Rehearse(_OfObject):
    """Ask the API whether it would take the object by now; one that it refuses is an error of the pass, as before."""


@dataclass(frozen=True, kw_only=True)
class SetFinalizers(_OfName):
    """Write the finalizers of the very version of the object that was read, and these annotations (None takes one off)."""

    resource_version: str
    finalizers: tuple[str, ...]
    annotations: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def without(cls, resource: Resource, obj: JsonObject, finalizer: str, reason: str) -> Self:
        metadata = obj["metadata"]
        return cls(
            reason=reason,
            resource=resource,
            name=str(metadata["name"]),
            resource_version=str(metadata.get("resourceVersion", "")),
            finalizers=tuple(item for item in metadata.get("finalizers") or [] if item != finalizer),
        )


@dataclass(frozen=True, kw_only=True)
class PatchMetadata(_OfName):
    """Merge this into the metadata of the object with this uid, strategically: owners by their uid, None takes a key off."""

    uid: str
    change: JsonObject


@dataclass(frozen=True, kw_only=True)
class WriteDurability(Action):
    """Server-side apply of `spec.durability` to the group with this uid, by a field manager of its own and without force."""

    name: str
    uid: str
    durability: str

    @property
    def target(self) -> str:
        return f"{self.name} {self.durability}"


@dataclass(frozen=True, kw_only=True)
class WriteStatus(Action):
    """Server-side apply of the status. `notes`: the transitions that it shows."""

    status: JsonObject
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SwitchMaster(Action):
    """Ask the controller plane for a planned switchover away from this broker; nothing to do if it is not master."""

    from_broker_id: int
    to_broker_id: int | None = None
    cause: Cause = Cause.PLANNED_SWITCHOVER

    @property
    def target(self) -> str:
        return f"{self.from_broker_id} -> {self.to_broker_id or 'the best'}"


@dataclass(frozen=True, kw_only=True)
class RemoveMember(Action):
    """Ask the controller plane to clean this id from the record; it refuses where the seat is needed."""

    broker_id: int

    @property
    def target(self) -> str:
        return f"broker id {self.broker_id}"


@dataclass(frozen=True, kw_only=True)
class SetBrokerConfig(_OfBroker):
    """Give a running broker these values (25), and note on its pod what it has.

    The note loses these keys first: an operator that dies in between leaves no note of old values. `restarts`: of the container
    asked.
    """

    uid: str
    noted: Mapping[str, str]
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class PutBackBrokerConfig(_OfBroker):
    """Give a running broker these values again (25) where it still runs with others; its note is of what was found then."""


def put_back_note(action: PutBackBrokerConfig, found: Mapping[str, str]) -> Note:
    """Member, key, value found, value put back."""
    texts = ", ".join(f"{key}={shown(found[key])}, put back to {action.values[key]}" for key in sorted(found))
    return Note(
        reason="ConfigurationPutBack",
        message=f"Broker {action.broker_id} (pod {action.pod}) ran with {texts}: acknowledgements rest on it",
        related=action.pod,
        warning=True,
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The actions in order, when to look again if nothing happens meanwhile (None: at the next resync), and whether it rolls."""

    actions: tuple[Action, ...] = ()
    look_again_seconds: float | None = None
    turn: Turn = Turn.NONE


class Verb(StrEnum):
    SWITCH = "switch"  # mastership goes from `member` to another
    REPLACE = "replace"  # the pod of `member` is deleted; the next pass makes it anew on the same claim
    REHEARSE = "rehearse"  # the API is asked once more for the next pod of `member`, and nothing is stopped for it
    HOLD = "stop the broker of"  # the fence in the pod of `member` stops its broker; the pod stays
    MARK = "mark"  # the claim of `member` says from now on that its member leaves
    STOP = "stop"  # the pod of `member` is deleted and does not come back
    DROP_VOLUME = "drop volume"  # the claim of `member` is deleted, with its data
    FORGET = "forget"  # the id of `member` is cleaned from the record
    WAIT = "wait"  # something begun is not over yet, or it is a person's turn
    REFUSE = "refuse"  # wanted by the spec, and not possible now


ACTING = frozenset(
    {Verb.SWITCH, Verb.REPLACE, Verb.REHEARSE, Verb.HOLD, Verb.MARK, Verb.STOP, Verb.DROP_VOLUME, Verb.FORGET}
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A verb, its member, and why. `reason` is what the conditions show; `to_broker_id` None lets the controller choose."""

    verb: Verb
    reason: StrEnum
    why: str
    member: Member | None = None
    to_broker_id: int | None = None
    # Of a switchover: its cause in the incident log.
    cause: Cause = Cause.PLANNED_SWITCHOVER
    # What is wrong with a member whose process is replaced for it: its Event is a warning of its own.
    amiss: Reason | None = None

    @property
    def acts(self) -> bool:
        return self.verb in ACTING


@dataclass(frozen=True)
class Verdict:
    """A condition without its times."""

    status: ConditionStatus
    reason: StrEnum
    message: str

    @property
    def holds(self) -> bool:
        return self.status is ConditionStatus.TRUE


def yes(reason: StrEnum, message: str) -> Verdict:
    return Verdict(ConditionStatus.TRUE, reason, message)


def no(reason: StrEnum, message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, reason, message)
