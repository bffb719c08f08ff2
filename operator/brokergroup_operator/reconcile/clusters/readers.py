"""Which declared consumer groups read a topic: what the masters of the cluster's groups say of it (300).

Not every declared consumer group: an offset makes a group a reader of the topic, for `Retire`, which waits for its readers, and
for each view of what is unread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from brokergroup_operator.observe.group_view import GroupView

# How long a topic waits for what its readers need: consumer groups, an answer that names them, offsets. Then it takes messages
# without.
PATIENCE_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class TopicWaitsError(Exception):
    """A topic, or its new queues, takes no messages yet; the message names what it waits for."""


@dataclass(frozen=True)
class Look:
    """One look at one group's master."""

    key: GroupKey
    # The names of the groups of the cluster, this one too.
    groups: tuple[str, ...]
    # The declared consumer groups that this master has; None while that is not known.
    consumer_groups: frozenset[str] | None
    # Why other groups did not answer during this look. Each is asked until it does not answer: that takes the whole deadline.
    silent: dict[GroupKey, str] = field(default_factory=dict)


class TopicReaders:
    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view, self._clock = view, clock
        # Since when a topic of this group waits.
        self._waiting: dict[tuple[GroupKey, str], float] = {}

    async def of(self, look: Look, topic: str, *, is_new: bool) -> frozenset[str]:
        """The readers among the consumer groups of the look. One group's answer is enough, but all are asked.

        Raises TopicWaitsError as `wait` does, while the consumer groups are not known or no master that could know answers.
        """
        if look.consumer_groups is None:
            self.wait(look.key, topic, "its consumer groups")
            return frozenset()
        places = [GroupKey(look.key.namespace, name) for name in look.groups]
        asked = [place for place in places if place not in look.silent and not (is_new and place == look.key)]
        found = zip(asked, await asyncio.gather(*(self._ask(place, topic) for place in asked)), strict=True)
        answers = []
        for place, answer in found:
            if isinstance(answer, str):
                look.silent[place] = answer
            elif answer is not None:
                answers.append(answer)
        if look.silent and not answers:
            self.wait(look.key, topic, f"the names of its readers: {min(look.silent.values())}")
        return look.consumer_groups.intersection(frozenset().union(*answers))

    def wait(self, key: GroupKey, topic: str, why: str) -> None:
        """Raise TopicWaitsError, but return once the topic has waited for `PATIENCE_SECONDS`: what it waits for may never come.

        A group may be there because the others are lost, and a broker may refuse offsets until a person changes that.
        """
        now_seconds = self._clock()
        if now_seconds - self._waiting.setdefault((key, topic), now_seconds) < PATIENCE_SECONDS:
            raise TopicWaitsError(f"group {key.name}: topic {topic} waits for {why}")
        log.warning("cluster.topic_without_first_offsets", group=str(key), topic=topic, error=why)

    def wait_no_more(self, key: GroupKey, *, but: Collection[str] = ()) -> None:
        """The topics of this group do not wait, but for these: another time they may wait as long again."""
        self._waiting = {
            (group, topic): since for (group, topic), since in self._waiting.items() if group != key or topic in but
        }

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        for name in groups:
            self.wait_no_more(GroupKey(namespace, name))

    async def _ask(self, key: GroupKey, topic: str) -> frozenset[str] | str | None:
        """The readers at this group; why they are not known; or None for a group that never had a master, so no consumer."""
        snapshot = self._view.snapshot(key)
        record = snapshot.record if snapshot is not None else None
        if record is None:
            return f"group {key.name}: its record is not read yet"
        if not record.master_epoch:
            return None
        if record.granted_master_id is None:
            return f"group {key.name} has no master"
        try:
            return await self._view.topic_readers(key, topic)
        except GroupViewError as error:
            return str(error)
