"""A broker's disk: its log with epochs, its identity, and the one setting that a controller changes.

A log is a list of message numbers; an offset is an index into it. Epochs are stored as in Java (epoch, start offset), and two
logs are compared only by them: two masters of one epoch would write different logs that look equal until a message is
missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Epochs = list[tuple[int, int]]


@dataclass
class Disk:
    """Survives the process and the pod."""

    minimum: int
    broker_id: int = 0
    messages: list[int] = field(default_factory=list)
    epochs: Epochs = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return len(self.messages)

    @property
    def last_epoch(self) -> int:
        """Return the last epoch; -1 on an empty disk."""
        return self.epochs[-1][0] if self.epochs else -1

    def begin_epoch(self, epoch: int, start: int) -> None:
        """Begin an epoch at the log's end. It replaces an epoch without messages."""
        if self.last_epoch >= epoch:
            return
        if self.epochs and self.epochs[-1][1] >= start:
            self.epochs.pop()
        self.epochs.append((epoch, start))

    def consistent_point(self, epochs: Epochs, end: int) -> int | None:
        """Return the end of the common prefix with another log, given by its epochs and end; None without a common epoch."""
        if not self.epochs:
            return 0
        theirs = _ends(epochs, end)
        for epoch, (start, own_end) in reversed(_ends(self.epochs, self.end).items()):
            if epoch in theirs and theirs[epoch][0] == start:
                return min(own_end, theirs[epoch][1])
        return None

    def truncate(self, point: int) -> None:
        """Drop all messages from this offset on."""
        if point < self.end:
            del self.messages[point:]
            self.epochs = [(epoch, start) for epoch, start in self.epochs if start < point]

    def epoch_at(self, offset: int) -> tuple[int, int, int]:
        """Return the epoch that wrote this offset, its start and its end."""
        for epoch, (start, end) in reversed(_ends(self.epochs, self.end).items()):
            if start <= offset:
                return epoch, start, end
        return -1, 0, self.end


def _ends(epochs: Epochs, end: int) -> dict[int, tuple[int, int]]:
    starts = [start for _, start in epochs]
    return {
        epoch: (start, following)
        for (epoch, start), following in zip(epochs, [*starts[1:], max(end, starts[-1])] if starts else [], strict=True)
    }
