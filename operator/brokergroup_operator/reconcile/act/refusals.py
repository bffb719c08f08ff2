"""What the API server refused of a group, from one pass to the next.

A refusal is over when a whole pass was carried out without one, and not before: a pass that the API server's absence cut short
proved nothing. Nor does a new plane know better than the one before: until it has carried out a pass of its own, it goes by
what the status says of the present spec. Otherwise each blip of the API ended `Stalled` and began it again, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.reconcile.act.node_ports import NodePortTakenError
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from brokergroup_operator.reconcile.tell.progress import SAID_BY_THE_SERVER

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.errors import ApiError
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.records.store import GroupKey

# Bad request, forbidden (a quota, an admission policy), invalid: asking again changes nothing.
REFUSALS: Final = frozenset({400, 403, 422})


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A refusal, for the status; all empty where nothing is refused."""

    refusal: str = ""
    node_port_taken: bool = False
    name_taken: str = ""

    def shown_to(self, seen: Observed) -> Observed:
        return replace(seen, refusal=self.refusal, node_port_taken=self.node_port_taken, name_taken=self.name_taken)


class Refusals:
    """The last refusal of each group that a pass was carried out for."""

    def __init__(self) -> None:
        self._known: dict[GroupKey, Refused] = {}

    def of(self, key: GroupKey, group_object: JsonObject) -> Refused:
        return self._known.get(key) or as_told(group_object)

    def note(self, key: GroupKey, error: ApiError) -> None:
        """Keep the refusal in this error; an error that is no refusal leaves the last one as it is."""
        if isinstance(error, NameTakenError):
            self._known[key] = Refused(name_taken=str(error))
        elif error.status in REFUSALS:
            # A pod template, say, that only Kubernetes can judge: a person must change the spec.
            self._known[key] = Refused(refusal=str(error), node_port_taken=isinstance(error, NodePortTakenError))

    def carried_out(self, key: GroupKey) -> None:
        self._known[key] = Refused()

    def forget(self, key: GroupKey) -> None:
        self._known.pop(key, None)


def as_told(group_object: JsonObject) -> Refused:
    """What `Stalled` says was refused of the present spec."""
    generation = (group_object.get("metadata") or {}).get("generation")
    for condition in (group_object.get("status") or {}).get("conditions") or []:
        is_true = condition.get("status") == ConditionStatus.TRUE and condition.get("observedGeneration") == generation
        if condition.get("type") != ConditionType.STALLED or not is_true:
            continue
        reason, message = condition.get("reason"), str(condition.get("message") or "")
        if reason == Reason.NODE_PORT_TAKEN:
            return Refused(refusal=message, node_port_taken=True)
        if reason == Reason.NAME_TAKEN:
            return Refused(name_taken=message)
        if reason == Reason.INVALID_SPEC and message.startswith(SAID_BY_THE_SERVER):
            return Refused(refusal=message.removeprefix(SAID_BY_THE_SERVER))
    return Refused()
