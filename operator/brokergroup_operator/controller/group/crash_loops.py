"""A master that crashes again and again loses its preference: the others lead while it finds its feet.

Among equals an election prefers the old master, which is right once and wrong for a container that is killed for its memory use
every half minute: each election would end a moment later in the next. So from its second loss on a replica is passed over for
a while that doubles with each further loss, as long as somebody else can lead; if nobody can, it leads all the same. It begins
anew after a quiet time. With the shortest penalty of a minute, one looping replica costs its group at most one election
a minute.

Kept in memory only, by monotonic seconds that are passed in: after a restart of the controller the first loss is the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PENALTY_SECONDS = 60.0
LONGEST_PENALTY_SECONDS = 960.0
FORGIVEN_AFTER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Losses:
    """How often one replica was lost as a master, and the last time."""

    count: int
    last_seconds: float
    last_epoch: int

    def penalty_seconds(self) -> float:
        """How long after its last loss it is passed over."""
        if self.count <= 1:
            return 0.0
        return min(FIRST_PENALTY_SECONDS * 2.0 ** (self.count - 2), LONGEST_PENALTY_SECONDS)

    def is_penalised(self, now_seconds: float) -> bool:
        """Whether it is passed over now."""
        return now_seconds - self.last_seconds < self.penalty_seconds()

    def again(self, now_seconds: float, epoch: int) -> Losses:
        """One more loss; the same epoch is lost once, however often it is looked at."""
        if epoch == self.last_epoch:
            return self
        quiet_seconds = now_seconds - self.last_seconds - self.penalty_seconds()
        return Losses(1 if quiet_seconds > FORGIVEN_AFTER_SECONDS else self.count + 1, now_seconds, epoch)


@dataclass(slots=True)
class CrashLoops:
    """The lost masters of one group."""

    _losses: dict[int, Losses] = field(default_factory=dict)

    def master_lost(self, broker_id: int, epoch: int, now_seconds: float) -> None:
        """The process that was master of this epoch is gone, and nobody asked for it."""
        before = self._losses.get(broker_id)
        self._losses[broker_id] = (
            before.again(now_seconds, epoch) if before is not None else Losses(1, now_seconds, epoch)
        )

    def penalised(self, now_seconds: float) -> frozenset[int]:
        """Who is to be passed over now, if somebody else can lead."""
        return frozenset(one for one, losses in self._losses.items() if losses.is_penalised(now_seconds))
