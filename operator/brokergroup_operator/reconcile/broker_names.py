"""Which groups have which broker name, as this reconcile plane knows it (`api/broker_names.py` has the rule).

The table is that of one reconcile plane: a list of all groups from time to time and each pass keep it. A plane that serves one
namespace sees the groups of that alone. A group that was let begin keeps the name from that moment, before its finalizer is read
back; one that has to wait is woken when the group before it goes, or says something else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.api.broker_names import NameClaim, claim_of, complaint, holder_before
from brokergroup_operator.reconcile.turns import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord


class BrokerNames:
    """The broker names of all groups that this plane knows. `wake` is called with a group that may have its name now."""

    def __init__(self, wake: Callable[[GroupKey], None] = lambda _key: None) -> None:
        self._wake = wake
        self._claims: dict[GroupKey, NameClaim] = {}
        # The groups that wait, each with the one that has its name.
        self._waiting: dict[GroupKey, str] = {}

    def keep_only(self, groups: Iterable[JsonObject], registered: Collection[GroupKey]) -> None:
        """These are all the groups there are, and those whose brokers have registered."""
        there = {key_of(group): group for group in groups}
        for key in self._claims.keys() - there.keys():
            self.forget(key)
        for key, group in there.items():
            self._take(key, claim_of(group, has_registered=key in registered))

    def note(self, group: JsonObject, record: BrokerGroupRecord | None) -> None:
        """Take in a group as a pass has just read it."""
        self._take(key_of(group), claim_of(group, has_registered=record is not None and record.has_registered))

    def forget(self, key: GroupKey) -> None:
        """The group is gone."""
        self._waiting.pop(key, None)
        if (gone := self._claims.pop(key, None)) is not None:
            self._wake_behind(gone)

    def taken(self, key: GroupKey) -> str:
        """Which other group has this one's broker name, for a person to read; empty where this one has it, and keeps it."""
        own = self._claims.get(key)
        if own is None:
            return ""
        holder = holder_before(own, self._claims.values())
        if holder is None:
            self._claims[key] = replace(own, has_begun=True)
            self._waiting.pop(key, None)
            return ""
        self._waiting[key] = str(holder)
        return complaint(own, holder)

    def _take(self, key: GroupKey, claim: NameClaim) -> None:
        before = self._claims.get(key)
        if before is not None and before.uid == claim.uid:
            claim = replace(
                claim,
                has_begun=claim.has_begun or before.has_begun,
                has_registered=claim.has_registered or before.has_registered,
            )
        self._claims[key] = claim
        if before is not None and before != claim:
            self._wake_behind(before)

    def _wake_behind(self, holder: NameClaim) -> None:
        for key in [key for key, name in self._waiting.items() if name == str(holder)]:
            self._wake(key)
