"""Which declared consumer groups read a topic: what the masters of the cluster's groups say of it (300).

Not every declared consumer group: an offset makes a group a reader of the topic, for `Retire`, which waits for its readers, and
for each view of what is unread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.observe.group_view import GroupView

# How long a new topic waits for the only groups that know its readers; then it takes messages without.
PATIENCE_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class TopicReaders:
    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view, self._clock = view, clock
        # Since when no group knows the readers of a topic of this group.
        self._unknown: dict[tuple[GroupKey, str], float] = {}

    async def of(
        self,
        key: GroupKey,
        topic: str,
        groups: Iterable[str],
        consumer_groups: frozenset[str] | None,
        *,
        is_new: bool,
    ) -> frozenset[str]:
        """The readers among these consumer groups, which the master of `key` has. One answer is enough, but all are asked.

        Raises GroupViewError while `consumer_groups` is None, and for `PATIENCE_SECONDS` if no master that could know answers.
        """
        if consumer_groups is None:
            raise GroupViewError(f"group {key.name}: topic {topic} waits for the consumer groups")
        others = [GroupKey(key.namespace, name) for name in groups if not (is_new and name == key.name)]
        asked = await asyncio.gather(*(self._ask(other, topic) for other in others))
        answers = [one for one in asked if isinstance(one, frozenset)]
        silent = [one for one in asked if isinstance(one, str)]
        if silent and not answers:
            self._be_patient(key, topic, silent[0])
        self._unknown.pop((key, topic), None)
        return consumer_groups.intersection(frozenset().union(*answers))

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        gone = {GroupKey(namespace, name) for name in groups}
        self._unknown = {place: since for place, since in self._unknown.items() if place[0] not in gone}

    async def _ask(self, key: GroupKey, topic: str) -> frozenset[str] | str | None:
        """The readers at this group; why they are not known; or None for a group that never had a master, so no consumer."""
        snapshot = self._view.snapshot(key)
        record = snapshot.record if snapshot is not None else None
        if record is None or not record.master_epoch:
            return None
        if record.granted_master_id is None:
            return f"group {key.name} has no master"
        try:
            return await self._view.topic_readers(key, topic)
        except GroupViewError as error:
            return str(error)

    def _be_patient(self, key: GroupKey, topic: str, why: str) -> None:
        """Raises GroupViewError for a while: a group may be added because the others are lost."""
        now_seconds = self._clock()
        if now_seconds - self._unknown.setdefault((key, topic), now_seconds) < PATIENCE_SECONDS:
            raise GroupViewError(f"group {key.name}: the readers of topic {topic} are not known: {why}")
        log.warning("cluster.readers_unknown", group=str(key), topic=topic, error=why)
