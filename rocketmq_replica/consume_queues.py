"""Where the n-th message of a topic's queue stands in the commit log.

Java keeps this on disk (``consumequeue/<topic>/<queueId>/``, 20 bytes per message, ``ha-and-deployment.md`` C.4). Here it is
memory only, rebuilt from the commit log whenever the replica starts: the log is the only truth, and an index that is never
stored can never disagree with it. The price is reading the whole log once at every start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MISSING = -1


class ConsumeQueue:
    """One queue: physical offsets, sizes and store times by queue offset."""

    def __init__(self) -> None:
        """An empty queue; the first record says which queue offset it begins with."""
        self.min_offset = 0
        self._offsets = array("q")
        self._sizes = array("i")
        self._timestamps = array("q")

    @property
    def next_offset(self) -> int:
        """The queue offset the next message will get."""
        return self.min_offset + len(self._offsets)

    def add(self, queue_offset: int, physical_offset: int, size_bytes: int, store_timestamp_ms: int) -> bool:
        """Enter a message; False if its queue offset is taken already (then nothing changes)."""
        if not self._offsets:
            self.min_offset = queue_offset
        elif queue_offset < self.next_offset:
            return False
        while queue_offset > self.next_offset:  # a hole: records that are not there for consumers
            self._append(self._offsets[-1], _MISSING, self._timestamps[-1])
        self._append(physical_offset, size_bytes, store_timestamp_ms)
        return True

    def drop_from(self, physical_offset: int) -> None:
        """Forget messages stored at or after ``physical_offset``."""
        keep = bisect_left(self._offsets, physical_offset)
        del self._offsets[keep:], self._sizes[keep:], self._timestamps[keep:]

    def visible_end(self, confirm_offset: int) -> int:
        """The first queue offset that consumers must not see yet: its record ends above ``confirm_offset``."""
        count = bisect_right(self._offsets, confirm_offset - 1)
        while count and self._offsets[count - 1] + max(self._sizes[count - 1], 0) > confirm_offset:
            count -= 1
        return self.min_offset + count

    def locate(self, queue_offset: int) -> tuple[int, int] | None:
        """(physical offset, size) of a message; None for a hole or outside."""
        index = queue_offset - self.min_offset
        if not 0 <= index < len(self._offsets) or self._sizes[index] == _MISSING:
            return None
        return self._offsets[index], self._sizes[index]

    def first_stored_at_or_after(self, timestamp_ms: int) -> int:
        """The queue offset of the first message stored at that time or later."""
        return self.min_offset + bisect_left(self._timestamps, timestamp_ms)

    def _append(self, physical_offset: int, size_bytes: int, store_timestamp_ms: int) -> None:
        self._offsets.append(physical_offset)
        self._sizes.append(size_bytes)
        self._timestamps.append(store_timestamp_ms)


class ConsumeQueues:
    """All queues by topic and queue id."""

    def __init__(self) -> None:
        """No queues yet."""
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made on first use."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue()
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue if it ever had a message."""
        return self._queues.get((topic, queue_id))

    def drop_from(self, physical_offset: int) -> None:
        """Forget messages stored at or after ``physical_offset`` in every queue."""
        for queue in self._queues.values():
            queue.drop_from(physical_offset)

    def names(self) -> Iterator[tuple[str, int]]:
        """Every (topic, queue id) seen."""
        return iter(self._queues)
