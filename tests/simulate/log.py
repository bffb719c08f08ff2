"""What a broker keeps on its disk: its log with its epochs, who it is, and the one setting that a controller changes.

A log is a list of message numbers; an offset is an index of it. Epochs are kept as Java keeps them (epoch, start offset), and two
logs are compared by them alone: two masters of one epoch would write different logs that nobody can tell apart, until a message is
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
        """-1 on a blank disk."""
        return self.epochs[-1][0] if self.epochs else -1

    def begin_epoch(self, epoch: int, start: int) -> None:
        """What follows was written under this epoch. One in which nothing was written gives way to it."""
        if self.last_epoch >= epoch:
            return
        if self.epochs and self.epochs[-1][1] >= start:
            self.epochs.pop()
        self.epochs.append((epoch, start))

    def consistent_point(self, epochs: Epochs, end: int) -> int | None:
        """Up to where another log, known by its epochs and its end, has the same messages; None where no epoch is common."""
        if not self.epochs:
            return 0
        theirs = _ends(epochs, end)
        for epoch, (start, own_end) in reversed(_ends(self.epochs, self.end).items()):
            if epoch in theirs and theirs[epoch][0] == start:
                return min(own_end, theirs[epoch][1])
        return None

    def truncate(self, point: int) -> None:
        """Forget what lies behind."""
        if point < self.end:
            del self.messages[point:]
            self.epochs = [(epoch, start) for epoch, start in self.epochs if start < point]

    def epoch_at(self, offset: int) -> tuple[int, int, int]:
        """The epoch in which this offset was written, its start and its end."""
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
