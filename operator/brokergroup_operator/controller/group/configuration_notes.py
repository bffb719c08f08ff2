"""What the members' brokers say that they run with (26), as far as it is watched. Perishable: true of this process of ours only."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class ConfigurationNotes:
    """The notes of one group."""

    def __init__(self) -> None:
        # Who has answered since it last had a reason to run with something else, or was due to be asked again.
        self.checked: set[int] = set()
        # What they said: the watched keys, and minInSyncReplicas by itself, which decisions go by.
        self.said: dict[int, Mapping[str, str]] = {}
        self.minimums: dict[int, int] = {}
        self._changes: Counter[int] = Counter()

    def asking(self, broker_id: int) -> int:
        """To be given back with the answer: what was changed after the question is not in it."""
        return self._changes[broker_id]

    def heard(self, broker_id: int, values: Mapping[str, str], keys: Collection[str], *, asked: int) -> bool:
        """Keep what it said of these keys, unless it was changed meanwhile; returns whether that is news."""
        if asked != self._changes[broker_id]:
            return False
        known = {key: values[key] for key in keys if key in values}
        is_news = self.said.get(broker_id) != known
        self.said[broker_id] = known
        return is_news

    def changed(self, broker_id: int) -> None:
        """It was changed, or is another process: what it said is not true any more, and it is asked again."""
        self.may_have_changed(broker_id)
        self.said.pop(broker_id, None)

    def may_have_changed(self, broker_id: int) -> None:
        """It refused a change, or its answer was lost: what it said is the latest that is known, and it is asked again."""
        self._changes[broker_id] += 1
        self.checked.discard(broker_id)
