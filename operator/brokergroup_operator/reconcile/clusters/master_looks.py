"""What is declared at each group's master, topics or consumer groups: when a master is looked at, and what a look has found.

A slave copies both from its master every few seconds and not with the log, so a new master may lack the newest: a group is looked
at again after each change of master, and from time to time anyway, since a person may have deleted or changed one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from brokergroup_operator.observe.group_view import GroupView

# How long a group is taken to have what it was seen to have, while its master is the same.
AGAIN_SECONDS: Final = 300.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Standing:
    """How many are declared, how many every group has so, which groups are waited for, and what differs."""

    desired: int = 0
    ready: int = 0
    pending: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The names that a master has as declared, after the look, and what is said of the others.

    `pending`: what is waited for. The master is looked at again in the next pass.
    """

    ready: frozenset[str]
    differing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Held:
    """What a group was seen to have, and when it was: of which declaration, under which master."""

    uid: str
    epoch: int
    declared: tuple[object, ...]
    at_seconds: float
    found: Found = field(default_factory=lambda: Found(frozenset()))


class MasterLooks:
    """The looks at all groups of all clusters. What it remembers only spares requests."""

    def __init__(self, view: GroupView, clock: Callable[[], float], *, event: str) -> None:
        """`event` names a look in vain in the log."""
        self._view, self._clock, self._event = view, clock, event
        self._held: dict[GroupKey, _Held] = {}

    async def keep(
        self,
        namespace: str,
        declared: tuple[object, ...],
        groups: Mapping[str, str],
        *,
        count: int,
        bring_on: Callable[[GroupKey], Awaitable[Found]],
    ) -> Standing:
        """Call `bring_on`, which may raise GroupViewError, for every group whose master may lack something.

        `groups`: the uids of the BrokerGroups there are of the `count` asked for, by name.
        """
        if not declared:
            return Standing()
        keys = {GroupKey(namespace, name): uid for name, uid in groups.items()}
        waits = await asyncio.gather(*(self._look(key, declared, uid, bring_on) for key, uid in keys.items()))
        known = {key.name: self.known(key, declared, uid) for key, uid in keys.items()}
        as_declared = [found.ready for found in known.values() if found is not None]
        everywhere = frozenset.intersection(*as_declared) if len(as_declared) == count else frozenset()
        return Standing(
            desired=len(declared),
            ready=len(everywhere),
            pending=tuple(wait for wait in waits if wait),
            differing=tuple(f"group {name}: {text}" for name, one in known.items() if one for text in one.differing),
        )

    def known(self, key: GroupKey, declared: tuple[object, ...], uid: str) -> Found | None:
        """What this very group was seen to have of this declaration."""
        held = self._held.get(key)
        return held.found if held is not None and (held.uid, held.declared) == (uid, declared) else None

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        for name in groups:
            self._held.pop(GroupKey(namespace, name), None)

    async def _look(
        self,
        key: GroupKey,
        declared: tuple[object, ...],
        uid: str,
        bring_on: Callable[[GroupKey], Awaitable[Found]],
    ) -> str:
        """Returns what is waited for, or nothing. What a group had it still has, until its master says otherwise."""
        snapshot = self._view.snapshot(key)
        record = snapshot.record if snapshot is not None else None
        known = self.known(key, declared, uid)
        if record is None or record.granted_master_id is None:
            return "; ".join(known.pending) if known else f"group {key.name} has no master"
        now_seconds, held = self._clock(), self._held.get(key)
        is_done = known is not None and not known.pending
        is_same = is_done and held is not None and held.epoch == record.master_epoch
        if is_same and held is not None and now_seconds - held.at_seconds < AGAIN_SECONDS:
            return ""
        try:
            found = await bring_on(key)
        except GroupViewError as error:
            log.info(self._event, group=str(key), error=str(error))
            return "; ".join(known.pending) if known else str(error)
        self._held[key] = _Held(uid, record.master_epoch, declared, now_seconds, found)
        return "; ".join(found.pending)
