"""How much of the commit log is durable.

The log reports its writes and cuts to the flusher. The flusher fsyncs, here or in a thread, and only it moves ``durable_offset``,
by which sends are acknowledged, slaves acknowledge, and indexes are written. Three rules
(``tests/replica/test_durability.py``, also with drawn lives):

* A file stays dirty until an fsync of it has *returned*. A flush that begins during another one syncs the file again.
* A truncation begins a new generation. A flush of an older generation says nothing about bytes written later at its offsets.
* A failed fsync is never retried: the kernel marks the dropped pages clean, so the next fsync would succeed without them. From then
  on every flush raises ``LogFlushError`` and the process ends; only a new start, which reads the disk, finds what is durable.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from rocketmq_replica.log import disk


class LogFlushError(OSError):
    """A flush failed, now or earlier: no more of this log becomes durable, and this process must end."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(errno.EIO, f"the log cannot be flushed: {cause.strerror or cause}")


@dataclass(frozen=True)
class Flush:
    """One flush: pass it to ``LogFlusher.run``, in a thread or not, then to ``LogFlusher.finish``."""

    generation: int
    end_offset: int
    descriptors: tuple[int, ...]
    """Duplicates, because the log may close its own."""


class LogFlusher:
    """Flushes one log. All methods but ``run`` belong to the thread that owns the log."""

    def __init__(self) -> None:
        self.durable_offset = 0
        self.generation = 0
        self._dirty: dict[int, tuple[int, int]] = {}  # descriptor of a file -> (generation, end) of its last write
        self._failure: OSError | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def failed(self) -> bool:
        """Whether a flush or a truncation has failed."""
        return self._failure is not None

    def written(self, descriptor: int, end_offset: int) -> None:
        """Record a write of the log to a file, up to ``end_offset``."""
        self._dirty[descriptor] = (self.generation, end_offset)

    def closed(self, descriptor: int) -> None:
        """Forget a file that the log has closed."""
        self._dirty.pop(descriptor, None)

    def begins_at(self, offset: int) -> None:
        """Set the durable offset of a log that was recovered or begins."""
        self.durable_offset = offset
        self.generation += 1
        self._dirty.clear()

    def truncating(self, offset: int) -> None:
        """Begin a truncation: no flush that has begun counts from now on."""
        if self._failure is not None:
            raise LogFlushError(self._failure)
        self.generation += 1
        self.durable_offset = min(self.durable_offset, offset)

    def truncation_failed(self, cause: OSError) -> None:
        """Record a failed truncation: the state of the cut bytes on the disk is unknown."""
        self._failure = cause

    def begin(self, end_offset: int) -> Flush:
        """Begin a flush up to ``end_offset``, the end of the log. Raise LogFlushError after a failure."""
        if self._failure is not None:
            raise LogFlushError(self._failure)
        return Flush(self.generation, end_offset, tuple(os.dup(descriptor) for descriptor in self._dirty))

    def run(self, flush: Flush) -> None:
        """Sync and close the flush's files, after any other flush. Raise LogFlushError if this or an earlier one failed."""
        with self._one_at_a_time:
            try:
                for descriptor in flush.descriptors if self._failure is None else ():
                    disk.sync_data(descriptor)
            except OSError as error:
                self._failure = error
            finally:
                for descriptor in flush.descriptors:
                    os.close(descriptor)
            if self._failure is not None:
                raise LogFlushError(self._failure) from self._failure

    def finish(self, flush: Flush) -> None:
        """Move the durable offset after a successful ``run``, unless the log was cut or another flush failed meanwhile."""
        if flush.generation != self.generation or self._failure is not None:
            return
        self.durable_offset = max(self.durable_offset, flush.end_offset)
        self._dirty = {
            descriptor: (generation, end)
            for descriptor, (generation, end) in self._dirty.items()
            if generation == flush.generation and end > flush.end_offset
        }

    def flush(self, end_offset: int) -> None:
        """Make the log durable up to ``end_offset`` now. Raise LogFlushError if this or an earlier flush failed."""
        flush = self.begin(end_offset)
        self.run(flush)
        self.finish(flush)
