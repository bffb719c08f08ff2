"""Turns: at most so many groups are in a rolling update at one time, so that a change which touches all of them at
once (another image of the operator, another address of it) meets its first trouble in one group.

The API has the last word: a group's own UpToDate condition says whether it rolls (reason RollingUpdate) or waits for its
turn, and it is written before the first pod is stopped. A new operator restores its table from there, so no turn is lost
and none is given twice. The table only spares a list of all groups in each pass; between `before` and `tell` of one pass
nothing is awaited, so two groups never take the same turn.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.api.bounds import JsonObject


class Turn(StrEnum):
    """A group's place among those that roll."""

    NONE = "none"  # it does not ask for a turn
    WAITS = "waits"  # it would begin, and others come before it
    HOLDS = "holds"  # it rolls: until every pod is new and in sync, or a person's word is needed


class RollingTurns:
    """The table of one reconcile plane. `maximum` 0: no limit. `wake` is called with each group whose turn has come."""

    def __init__(self, maximum: int, wake: Callable[[GroupKey], None]) -> None:
        self._maximum = maximum
        self._wake = wake
        self._holding: set[GroupKey] = set()
        self._waiting: dict[GroupKey, str] = {}

    def restore(self, groups: Iterable[JsonObject]) -> None:
        """Restore the turns from the groups' conditions, in an operator that has just begun to reconcile."""
        for group in groups:
            match turn_of(group):
                case Turn.HOLDS:
                    self._holding.add(key_of(group))
                case Turn.WAITS:
                    self._waiting[key_of(group)] = outdated_since(group, now="")

    def keep_only(self, groups: Iterable[JsonObject]) -> None:
        """A group that is gone without a pass of ours having seen it gives its turn back."""
        there = {key_of(group) for group in groups}
        for key in (self._holding | self._waiting.keys()) - there:
            self.tell(key, Turn.NONE, since="")

    def before(self, key: GroupKey, *, since: str) -> tuple[GroupKey, ...]:
        """Return the groups that come before this one, outdated since then; none if it may begin or has begun."""
        if self._maximum == 0 or key in self._holding:
            return ()
        earlier = [
            other
            for other in self._in_order()
            if other != key and (self._waiting[other], str(other)) < (since, str(key))
        ]
        if len(self._holding) + len(earlier) < self._maximum:
            return ()
        return (*sorted(self._holding, key=str), *earlier)

    def of(self, key: GroupKey) -> Turn:
        """Return what the last pass recorded."""
        return Turn.HOLDS if key in self._holding else Turn.WAITS if key in self._waiting else Turn.NONE

    def tell(self, key: GroupKey, turn: Turn, *, since: str) -> None:
        """Record what a pass found: the group rolls, waits, or neither."""
        gave_back = key in self._holding and turn is not Turn.HOLDS
        self._holding.discard(key)
        self._waiting.pop(key, None)
        if turn is Turn.HOLDS:
            self._holding.add(key)
        elif turn is Turn.WAITS:
            self._waiting[key] = since
        if gave_back:
            for next_key in self._in_order()[: max(0, self._maximum - len(self._holding))]:
                self._wake(next_key)

    def step_aside(self, key: GroupKey) -> None:
        """A pass failed: a group that only waits lets the others go first, until a pass reports again."""
        self._waiting.pop(key, None)

    def _in_order(self) -> list[GroupKey]:
        """Outdated for longest comes first; of those of one second, by name."""
        return sorted(self._waiting, key=lambda key: (self._waiting[key], str(key)))


def turn_of(group: JsonObject) -> Turn:
    """By the group's own condition."""
    match _up_to_date(group):
        case {"status": ConditionStatus.FALSE, "reason": Reason.ROLLING_UPDATE}:
            return Turn.HOLDS
        case {"status": ConditionStatus.FALSE, "reason": Reason.WAITING_FOR_OTHER_GROUPS}:
            return Turn.WAITS
    return Turn.NONE


def outdated_since(group: JsonObject, *, now: str) -> str:
    """When it was first seen to be outdated."""
    condition = _up_to_date(group)
    return str(condition["lastTransitionTime"]) if condition.get("status") == ConditionStatus.FALSE else now


def _up_to_date(group: JsonObject) -> JsonObject:
    conditions = (group.get("status") or {}).get("conditions") or []
    return next((dict(one) for one in conditions if one["type"] == ConditionType.UP_TO_DATE), {})


def key_of(group: JsonObject) -> GroupKey:
    """Its namespace and name."""
    return GroupKey(str(group["metadata"]["namespace"]), str(group["metadata"]["name"]))
