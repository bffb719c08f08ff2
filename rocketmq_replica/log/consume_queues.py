"""The place of each queue's n-th message in the commit log. Pure.

Java keeps it on disk (``consumequeue/<topic>/<queueId>/``, 20 bytes per message). Here it is in memory (20 bytes per message, too)
and rebuilt at every start, from the indexes of full log files (``side_files.py``) and from the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MISSING = -1


class QueuePart(NamedTuple):
    """The messages of one queue in one log file: three columns, and the queue offset of the first."""

    topic: str
    queue_id: int
    first_queue_offset: int
    offsets: array[int]
    sizes: array[int]
    timestamps: array[int]


class ConsumeQueue:
    """One queue: physical offsets, sizes and store times by queue offset.

    The oldest messages may be hidden: the log still has them, but their topic was deleted (``hide_before``).
    """

    def __init__(self, hidden_before: int = 0) -> None:
        """An empty queue. The first message sets the first queue offset."""
        self._first_offset = 0
        self._hidden = 0
        self._hidden_before = hidden_before
        self._offsets = array("q")
        self._sizes = array("i")
        self._timestamps = array("q")

    def __len__(self) -> int:
        """Return the number of messages and holes."""
        return len(self._offsets)

    @property
    def min_offset(self) -> int:
        """The queue offset of the oldest visible message."""
        return self._first_offset + self._hidden

    @property
    def next_offset(self) -> int:
        """The queue offset of the next message."""
        return self._first_offset + len(self._offsets)

    @property
    def shows_messages(self) -> bool:
        """Whether it has visible messages."""
        return self._hidden < len(self._offsets)

    def add(self, queue_offset: int, physical_offset: int, size_bytes: int, store_timestamp_ms: int) -> bool:
        """Add a message. Return False, without a change, if its queue offset is taken already."""
        count = len(self._offsets)
        if not count:
            self._first_offset = queue_offset
        elif queue_offset != self._first_offset + count:
            if queue_offset < self._first_offset + count:
                return False
            self._leave_hole(queue_offset)
        self._offsets.append(physical_offset)  # inline, not by `_append`: this runs for each message of a slave
        self._sizes.append(size_bytes)
        self._timestamps.append(store_timestamp_ms)
        if physical_offset < self._hidden_before:
            self._hidden = len(self._offsets)
        return True

    def extend(self, part: QueuePart) -> bool:
        """Add the messages of a whole file. Return False, without a change, if some of their queue offsets are taken."""
        if not self._offsets:
            self._first_offset = part.first_queue_offset
        elif part.first_queue_offset < self.next_offset:
            return False
        self._leave_hole(part.first_queue_offset)
        self._offsets.extend(part.offsets)
        self._sizes.extend(part.sizes)
        self._timestamps.extend(part.timestamps)
        self.hide_before(self._hidden_before)
        return True

    def part(self, topic: str, queue_id: int, start_offset: int, end_offset: int) -> QueuePart | None:
        """Return the messages stored from ``start_offset`` to below ``end_offset``; None if there are none."""
        first, end = bisect_left(self._offsets, start_offset), bisect_left(self._offsets, end_offset)
        while first < end and self._sizes[first] == _MISSING:
            first += 1
        while first < end and self._sizes[end - 1] == _MISSING:
            end -= 1
        if first == end:
            return None
        columns = (self._offsets[first:end], self._sizes[first:end], self._timestamps[first:end])
        return QueuePart(topic, queue_id, self._first_offset + first, *columns)

    def begin_at(self, queue_offset: int) -> None:
        """Set the queue offset of the next message of an empty queue, whose messages were all deleted."""
        if not self._offsets:
            self._first_offset = max(self._first_offset, queue_offset)

    def hide_before(self, physical_offset: int) -> None:
        """Hide the messages stored before ``physical_offset``, and show all others."""
        self._hidden_before = physical_offset
        self._hidden = bisect_left(self._offsets, physical_offset)

    def drop_before(self, physical_offset: int) -> None:
        """Remove messages stored before ``physical_offset``, in deleted files. Their queue offsets are not reused."""
        gone = bisect_left(self._offsets, physical_offset)
        self._first_offset += gone
        self._hidden = max(self._hidden - gone, 0)
        del self._offsets[:gone], self._sizes[:gone], self._timestamps[:gone]

    def drop_from(self, physical_offset: int) -> None:
        """Remove messages stored at or after ``physical_offset``."""
        keep = bisect_left(self._offsets, physical_offset)
        del self._offsets[keep:], self._sizes[keep:], self._timestamps[keep:]
        self._hidden = min(self._hidden, keep)

    def visible_end(self, confirm_offset: int) -> int:
        """Return the first queue offset that consumers must not see yet: its record ends above ``confirm_offset``."""
        count = bisect_right(self._offsets, confirm_offset - 1)
        while count and self._offsets[count - 1] + max(self._sizes[count - 1], 0) > confirm_offset:
            count -= 1
        return self._first_offset + max(count, self._hidden)

    def stored_at_ms(self, queue_offset: int) -> int:
        """Return when this visible message was stored; 0 if it is not one."""
        index = queue_offset - self._first_offset
        return self._timestamps[index] if self._hidden <= index < len(self._timestamps) else 0

    def locate(self, queue_offset: int) -> tuple[int, int] | None:
        """Return physical offset and size of a visible message; None for a hole or any other offset."""
        index = queue_offset - self._first_offset
        if not self._hidden <= index < len(self._offsets) or self._sizes[index] == _MISSING:
            return None
        return self._offsets[index], self._sizes[index]

    @property
    def earliest_store_timestamp_ms(self) -> int:
        """When the oldest visible message was stored; -1 if there is none."""
        return self._timestamps[self._hidden] if self.shows_messages else -1

    def first_stored_at_or_after(self, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at that time or later."""
        return self._first_offset + bisect_left(self._timestamps, timestamp_ms, self._hidden)

    def _leave_hole(self, queue_offset: int) -> None:
        """Fill with holes up to ``queue_offset``: records that consumers do not see."""
        while self._offsets and queue_offset > self.next_offset:
            self._append(self._offsets[-1], _MISSING, self._timestamps[-1])

    def _append(self, physical_offset: int, size_bytes: int, store_timestamp_ms: int) -> None:
        self._offsets.append(physical_offset)
        self._sizes.append(size_bytes)
        self._timestamps.append(store_timestamp_ms)


class ConsumeQueues:
    """All queues by topic and queue id."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        # The queue ids of each topic in `_queues`, from which no queue is ever removed.
        self._ids: dict[str, set[int]] = {}
        self._hidden_before: Mapping[str, int] = {}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create it on first use."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue(self._hidden_before.get(topic, 0))
            self._ids.setdefault(topic, set()).add(queue_id)
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if it never had a message."""
        return self._queues.get((topic, queue_id))

    def end(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of its next message; 0 if it never had one."""
        queue = self.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def hide_before(self, ends: Mapping[str, int]) -> None:
        """Hide the messages of each of these topics stored before its offset, and show all others."""
        before, self._hidden_before = self._hidden_before, dict(ends)
        changed = {topic for topic in before.keys() | ends.keys() if before.get(topic, 0) != ends.get(topic, 0)}
        if not changed:
            return
        for (topic, _), queue in self._queues.items():
            if topic in changed:
                queue.hide_before(ends.get(topic, 0))

    def of_topic(self, topic: str) -> set[int]:
        """Return the ids of the topic's queues that show a message."""
        ids = self._ids.get(topic, ())
        return {queue_id for queue_id in ids if self._queues[topic, queue_id].shows_messages}

    def has_topic(self, topic: str) -> bool:
        """Whether a queue of this topic ever had a message."""
        return topic in self._ids

    def drop_from(self, physical_offset: int) -> None:
        """Remove messages stored at or after ``physical_offset`` from every queue."""
        for queue in self._queues.values():
            queue.drop_from(physical_offset)

    def drop_before(self, physical_offset: int) -> None:
        """Remove messages in deleted files from every queue."""
        for queue in self._queues.values():
            queue.drop_before(physical_offset)

    def parts(self, start_offset: int, end_offset: int) -> list[QueuePart]:
        """Return every queue's messages between these physical offsets."""
        found = (queue.part(*name, start_offset, end_offset) for name, queue in self._queues.items())
        return [part for part in found if part is not None]

    def extend(self, parts: list[QueuePart]) -> bool:
        """Add the messages of a whole file. Return False, without a change, if any queue offset is taken."""
        queues = [self.queue(part.topic, part.queue_id) for part in parts]
        if any(
            len(queue) and part.first_queue_offset < queue.next_offset
            for queue, part in zip(queues, parts, strict=True)
        ):
            return False
        return all(queue.extend(part) for queue, part in zip(queues, parts, strict=True))

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """Return the queue offset of every queue's next message."""
        return {name: queue.next_offset for name, queue in self._queues.items()}

    def ended(self) -> dict[tuple[str, int], int]:
        """Return the queue offset of the next message of every queue whose messages were all deleted."""
        return {name: queue.next_offset for name, queue in self._queues.items() if not len(queue) and queue.next_offset}

    def begin_at(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the queue offsets of the next messages of queues without messages."""
        for (topic, queue_id), offset in offsets.items():
            self.queue(topic, queue_id).begin_at(offset)

    def names(self) -> Iterator[tuple[str, int]]:
        """Yield (topic, queue id) of every queue with visible messages."""
        return (name for name, queue in self._queues.items() if queue.shows_messages)
