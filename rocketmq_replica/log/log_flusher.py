"""What of the commit log is on the disk: the one owner of that word.

The log tells the flusher what it wrote and what it cut; the flusher fsyncs, here or in a thread, and alone moves
``durable_offset``. Sends are acknowledged, slaves acknowledge, and indexes are written by that offset only. Three rules hold it
(``tests/replica/test_durability.py``, and over drawn lives ``tests/replica/test_faulty_disk.py``):

* A file stays dirty until an fsync of it has *returned*. A flush that begins while another is under way syncs the file again.
* A flush belongs to a generation, and a truncation begins a new one: what an overtaken flush synced says nothing of the bytes
  that were written at the same offsets since.
* An fsync that failed is never tried again. The kernel drops the pages and thinks them clean, so the next fsync would succeed
  over bytes that are gone (Linux reports the error once for each open file). From then on every flush raises
  ``LogFlushError``, and the process ends with it: only a start that reads the disk tells what holds.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from rocketmq_replica.log import disk


class LogFlushError(OSError):
    """A flush failed, now or before: nothing more of this log may be called durable, and this process has to end."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(errno.EIO, f"the log cannot be flushed: {cause.strerror or cause}")


@dataclass(frozen=True)
class Flush:
    """One flush under way: hand it to ``LogFlusher.run``, in a thread or not, then to ``LogFlusher.finish``."""

    generation: int
    end_offset: int
    descriptors: tuple[int, ...]
    """Duplicates: the log may close its own meanwhile."""


class LogFlusher:
    """Flushes one log, and says what of it is durable. All but ``run`` belongs to the thread that owns the log."""

    def __init__(self) -> None:
        """Nothing is written, nothing is durable."""
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
        """The log wrote to a file; the write ends at ``end_offset``."""
        self._dirty[descriptor] = (self.generation, end_offset)

    def closed(self, descriptor: int) -> None:
        """The log closed a file: it was deleted, or the log itself is closed."""
        self._dirty.pop(descriptor, None)

    def begins_at(self, offset: int) -> None:
        """The log is found, or begins, and all of it is durable up to ``offset``."""
        self.durable_offset = offset
        self.generation += 1
        self._dirty.clear()

    def truncating(self, offset: int) -> None:
        """The log is about to be cut: from now on no flush that has begun counts."""
        if self._failure is not None:
            raise LogFlushError(self._failure)
        self.generation += 1
        self.durable_offset = min(self.durable_offset, offset)

    def truncation_failed(self, cause: OSError) -> None:
        """Nobody knows what of the cut bytes stands on the disk, nor whether it is zeroed."""
        self._failure = cause

    def begin(self, end_offset: int) -> Flush:
        """A flush that will make the log durable up to ``end_offset``, its end. LogFlushError after a failure."""
        if self._failure is not None:
            raise LogFlushError(self._failure)
        return Flush(self.generation, end_offset, tuple(os.dup(descriptor) for descriptor in self._dirty))

    def run(self, flush: Flush) -> None:
        """Sync and close the flush's files; waits for another flush that is under way, whose failure is this one's too."""
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
        """The flush ran without an error: what it made durable counts, unless the log was cut meanwhile or a later one failed."""
        if flush.generation != self.generation or self._failure is not None:
            return
        self.durable_offset = max(self.durable_offset, flush.end_offset)
        self._dirty = {
            descriptor: (generation, end)
            for descriptor, (generation, end) in self._dirty.items()
            if generation == flush.generation and end > flush.end_offset
        }

    def flush(self, end_offset: int) -> None:
        """Make the log durable up to ``end_offset``, here and now. LogFlushError if that fails, or failed before."""
        flush = self.begin(end_offset)
        self.run(flush)
        self.finish(flush)
