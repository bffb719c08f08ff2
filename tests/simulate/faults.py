"""The faults of a run, drawn from its seed: causes of a change of master, and disturbances while a plane carries it out.

A cause comes alone or with disturbances: a plane or broker dies or stops exactly when a request arrives, links are cut,
the API is late, loses answers, conflicts or is down. Every fault ends before the run does; the oracle judges the product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from tests.simulate.world import World

KINDS: tuple[int | str, ...] = (25, 104, 1008, 1008, 906, "api PUT", "api PUT", "api DELETE", "api PATCH")
MOMENTS = ("before", "after")


@dataclass
class Trap:
    """Fires when the n-th effect of its kind arrives (before), or after it was carried out (after)."""

    kind: int | str
    moment: str
    countdown: int
    what: str
    spring: Callable[[str, str], None]


class Faults:
    """Draws faults and causes them."""

    def __init__(self, world: World, random_: random.Random) -> None:
        self._world, self._random = world, random_

    async def run(self) -> None:
        """Cause all faults of the run."""
        for _ in range(self._random.choice((1, 1, 2, 2, 3))):
            disturbances = [self._random.choice(DISTURBANCES) for _ in range(self._random.choice((0, 1, 1, 1, 2, 2)))]
            for disturb in disturbances:
                disturb(self)
            await asyncio.sleep(self._random.uniform(0.0, 0.4))
            self._random.choice(CAUSES)(self)
            await asyncio.sleep(self._random.choice((0.3, 2.0, 5.0, 9.0)) * self._random.uniform(0.5, 1.0))

    def _later(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        """Schedule a fault; it is dropped if all faults have ended by then."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            if not self._world.is_mended:
                self._world.story.tell(what)
                do()

        self._world.loop.spawn("test", wait())

    # ---- the targets

    def _master(self) -> str:
        brokers = [broker for broker in self._world.kubelet.running() if broker.is_master]
        return max(brokers, key=lambda one: one.epoch).node if brokers else self._any_broker()

    def _any_broker(self) -> str:
        return self._random.choice(self._world.kubelet.wanted)

    def _a_slave(self) -> str:
        master = self._master()
        return self._random.choice([one for one in self._world.kubelet.wanted if one != master])

    def _a_plane(self) -> str:
        return self._random.choice([plane.node for plane in self._world.planes])

    # ---- causes

    def switchover(self) -> None:
        to = self._random.choice((None, None, int(self._a_slave().rpartition("-")[2])))
        self._world.plane(self._a_plane()).switch_master(to)

    def kill_master(self) -> None:
        self._world.kill(self._master())

    def freeze_master(self) -> None:
        self._freeze(self._master(), self._random.choice((0.8, 2.0, 3.0, 5.0, 9.0)))

    def drain_master(self) -> None:
        self._world.loop.spawn("kubelet", self._world.kubelet.drain(self._master()))

    def kill_slave(self) -> None:
        self._world.kill(self._a_slave())

    def freeze_slave(self) -> None:
        self._freeze(self._a_slave(), self._random.choice((1.0, 3.0, 6.0)))

    def part_master_from_planes(self) -> None:
        master, seconds = self._master(), self._random.choice((1.0, 3.0, 8.0))
        for plane in self._world.planes:
            self._cut(master, plane.node, seconds)

    def part_master_from_slaves(self) -> None:
        master, seconds = self._master(), self._random.choice((1.0, 4.0, 8.0))
        for other in self._world.kubelet.wanted:
            if other != master:
                self._cut(master, other, seconds)

    def kill_master_and_slave(self) -> None:
        slave = self._a_slave()
        self._world.kill(self._master())
        self._later(self._random.choice((0.0, 0.05, 0.5)), f"{slave} goes too", lambda: self._world.kill(slave))

    # ---- disturbances

    def trap(self) -> None:
        kind, moment = self._random.choice(KINDS), self._random.choice(MOMENTS)
        seconds = self._random.choice((0.5, 2.5, 6.0))
        what, spring = self._random.choice(
            (
                ("kill the sender", lambda sender, _: self._world.kill(sender)),
                ("kill the sender", lambda sender, _: self._world.kill(sender)),
                ("kill the receiver", lambda _, receiver: self._world.kill(receiver)),
                ("stop the sender", lambda sender, _: self._freeze(sender, seconds)),
                ("stop the receiver", lambda _, receiver: self._freeze(receiver, seconds)),
                ("cut the way", lambda sender, receiver: self._cut(sender, receiver, seconds)),
            )
        )
        self._world.traps.append(Trap(kind, moment, self._random.choice((1, 1, 1, 2, 3)), what, spring))

    def lose_answers(self) -> None:
        self._world.plane(self._a_plane()).trouble.answers_lost += self._random.choice((1, 1, 2, 5))

    def lose_answers_of_all(self) -> None:
        for plane in self._world.planes:
            plane.trouble.answers_lost += self._random.choice((1, 2, 4))

    def lose_requests(self) -> None:
        for plane in self._world.planes:
            plane.trouble.requests_lost += self._random.choice((0, 1, 2))

    def conflicts(self) -> None:
        for plane in self._world.planes:
            plane.trouble.conflicts += self._random.choice((0, 1, 2))
            plane.trouble.too_many += self._random.choice((0, 0, 3))

    def slow_api(self) -> None:
        seconds, delay_seconds = self._random.choice((2.0, 4.0, 8.0)), self._random.choice((0.1, 0.7, 1.5))
        for plane in self._world.planes:
            plane.trouble.delay_seconds = delay_seconds
            trouble = plane.trouble
            self._later(
                seconds, f"api answers {plane.node} quickly again", partial(setattr, trouble, "delay_seconds", 0.0)
            )
        self._world.story.tell(f"api answers after {delay_seconds} s")

    def slow_proposals(self) -> None:
        """Delay 1001, so that a proposal sent under one epoch is decided under the next."""
        self._world.proposals_wait_seconds = self._random.choice((0.2, 1.0, 3.0))
        self._world.story.tell(f"a master's 1001 takes up to {self._world.proposals_wait_seconds} s")

    def api_goes(self) -> None:
        planes = self._world.planes if self._random.random() < 0.6 else [self._world.plane(self._a_plane())]
        seconds = self._random.choice((0.5, 2.0, 5.0))
        self._world.story.tell(f"api is away for {[plane.node for plane in planes]}")
        for plane in planes:
            plane.trouble.down = True
            trouble = plane.trouble
            self._later(seconds, f"api is back for {plane.node}", partial(setattr, trouble, "down", 0))

    def watches_stand(self) -> None:
        for plane in self._world.planes:
            if self._random.random() < 0.7:
                plane.trouble.watches_stand = True
                trouble = plane.trouble
                self._later(
                    self._random.choice((1.0, 4.0, 8.0)),
                    f"watches of {plane.node} go on",
                    partial(setattr, trouble, "watches_stand", 0),
                )

    def freeze_plane(self) -> None:
        plane, seconds = self._a_plane(), self._random.choice((0.6, 2.0, 5.0))
        self._later(self._random.uniform(0.0, 1.0), f"{plane} is about to stop", lambda: self._freeze(plane, seconds))

    def kill_plane(self) -> None:
        plane = self._a_plane()
        self._later(self._random.uniform(0.0, 1.0), f"{plane} is about to die", lambda: self._world.kill(plane))

    def kill_broker(self) -> None:
        node = self._any_broker()
        self._later(self._random.uniform(0.0, 1.5), f"{node} is about to die", lambda: self._world.kill(node))

    def part_plane_from_broker(self) -> None:
        self._cut(self._a_plane(), self._any_broker(), self._random.choice((1.0, 4.0, 8.0)))

    def part_plane_from_brokers(self) -> None:
        plane, seconds = self._a_plane(), self._random.choice((1.0, 4.0, 8.0))
        for node in self._world.kubelet.wanted:
            self._cut(plane, node, seconds)

    def part_brokers(self) -> None:
        one = self._any_broker()
        other = self._random.choice([node for node in self._world.kubelet.wanted if node != one])
        self._cut(one, other, self._random.choice((1.0, 4.0, 8.0)))

    def part_planes(self) -> None:
        one = self._a_plane()
        for plane in self._world.planes:
            if plane.node != one:
                self._cut(one, plane.node, 5.0)

    # ---- carrying it out

    def _freeze(self, node: str, seconds: float) -> None:
        self._world.freeze(node, seconds)

    def _cut(self, one: str, other: str, seconds: float) -> None:
        self._world.cut(one, other, seconds)


Act = Callable[[Faults], None]

CAUSES: tuple[Act, ...] = (
    Faults.switchover,
    Faults.switchover,
    Faults.switchover,
    Faults.switchover,
    Faults.kill_master,
    Faults.kill_master,
    Faults.kill_master,
    Faults.freeze_master,
    Faults.freeze_master,
    Faults.freeze_master,
    Faults.drain_master,
    Faults.drain_master,
    Faults.kill_slave,
    Faults.freeze_slave,
    Faults.part_master_from_planes,
    Faults.part_master_from_slaves,
    Faults.kill_master_and_slave,
)
DISTURBANCES: tuple[Act, ...] = (
    Faults.trap,
    Faults.trap,
    Faults.trap,
    Faults.trap,
    Faults.trap,
    Faults.trap,
    Faults.lose_answers,
    Faults.lose_answers_of_all,
    Faults.lose_requests,
    Faults.conflicts,
    Faults.slow_api,
    Faults.slow_proposals,
    Faults.api_goes,
    Faults.watches_stand,
    Faults.freeze_plane,
    Faults.kill_plane,
    Faults.kill_broker,
    Faults.part_plane_from_broker,
    Faults.part_plane_from_brokers,
    Faults.part_brokers,
    Faults.part_planes,
)
