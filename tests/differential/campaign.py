"""Many seeded sequences at one Java controller, in parallel on separate groups; failing ones are shrunk and drawn."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.differential.comparison import Comparison
from tests.differential.generator import Generator
from tests.differential.shrink import shrink
from tests.differential.sides import JavaSide, OurSide, java_side, our_side
from tests.differential.traces_of_sequences import draw, kept_sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.differential.comparison import Outcome
    from tests.differential.language import Step

SIDE_BY_SIDE = 8
SEQUENCES_OF_ONE_PLANE = 200
FEWEST_STEPS = 12
MOST_STEPS = 40
MOST_FAILURES = 5


@dataclass
class Tally:
    """The results of a run so far."""

    sequences: int = 0
    steps: int = 0
    deviations: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.sequences += 1
        self.steps += outcome.steps
        self.deviations.update(outcome.deviations)
        if outcome.ended_by is not None:
            self.ended[outcome.ended_by] += 1


@dataclass
class Campaign:
    """One run against one Java version."""

    version: str
    seed: int
    sequences: int
    most_steps: int = MOST_STEPS
    most_failures: int = MOST_FAILURES
    ours: Callable[[], AbstractAsyncContextManager[OurSide]] = our_side
    tally: Tally = field(default_factory=Tally)

    async def run(self, folder: Path) -> Tally:
        """Play the kept traces, then generated sequences. Stops after a few failures: those should be read first."""
        async with java_side(folder, self.version) as java:
            return await self.run_at(java)

    async def run_at(self, java: JavaSide) -> Tally:
        """Run at a Java controller that already runs."""
        async with self.ours() as ours:
            for name, steps in kept_sequences().items():
                if len(self.tally.failures) < self.most_failures:
                    await self._account(java, ours, await self._replay(java, ours, steps), f"kept trace {name}", steps)
        for first in range(0, self.sequences, SEQUENCES_OF_ONE_PLANE):
            async with self.ours() as ours:
                await self._batch(java, ours, range(first, min(first + SEQUENCES_OF_ONE_PLANE, self.sequences)))
        return self.tally

    async def _batch(self, java: JavaSide, ours: OurSide, numbers: range) -> None:
        waiting = iter(numbers)

        async def worker() -> None:
            for number in waiting:
                if len(self.tally.failures) >= self.most_failures:
                    return
                await self._sequence(java, ours, number)

        await asyncio.gather(*(worker() for _ in range(SIDE_BY_SIDE)))

    async def _sequence(self, java: JavaSide, ours: OurSide, number: int) -> None:
        chance = random.Random(f"{self.version}/{self.seed}/{number}")
        length = chance.randint(min(FEWEST_STEPS, self.most_steps), self.most_steps)
        comparison = Comparison(java, ours)
        generator = Generator.seeded(chance, comparison)
        steps: list[Step] = []

        def generated() -> Iterator[Step]:
            while len(steps) < length:
                steps.append(generator.next())
                yield steps[-1]

        await comparison.play_all(generated())
        title = f"java {self.version}, seed {self.seed}, sequence {number}"
        await self._account(java, ours, comparison.outcome, title, steps)

    async def _account(self, java: JavaSide, ours: OurSide, outcome: Outcome, title: str, steps: list[Step]) -> None:
        self.tally.add(outcome)
        if outcome.difference is None and outcome.failure is None:
            return
        failure = draw(outcome, title=title)
        self.tally.failures.append(failure)
        place = len(self.tally.failures) - 1
        if place >= self.most_failures:
            return  # others are being shrunk already

        async def fails(candidate: list[Step]) -> bool:
            again = await self._replay(java, ours, candidate)
            return again.difference is not None or again.failure is not None

        if await fails(steps):
            shrunk = await self._replay(java, ours, await shrink(steps, fails))
            self.tally.failures[place] = draw(shrunk, title=f"{title}, shrunk")
        else:
            self.tally.failures[place] = draw(outcome, title=f"{title}, NOT REPEATED when played again")

    async def _replay(self, java: JavaSide, ours: OurSide, steps: list[Step]) -> Outcome:
        comparison = Comparison(java, ours)
        await comparison.play_all(steps)
        return comparison.outcome
