"""Random sequences from a seed: mostly valid steps of brokers and administrators, sometimes invalid ones.

A step is chosen after the previous one was compared, from the state that both controllers agree on: so a sequence goes deep
(elections, failovers, sets that grow and shrink) instead of failing a first check. A seed gives the same steps as
long as the answers stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.differential.language import Step

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.differential.comparison import Comparison, GroupWorld

MOST_MEMBERS = 4
NUMBERS = (
    "null",
    "abc",
    "",
    "0",
    "-1",
    "-7",
    "9",
    "17",
    "33",
    "+1",
    "1.5",
    "0x1",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
)
TEXTS = ("null", "", ";", "x", "10.0.0.9:10911")
BODIES = ("none", "garbage", "noset", "null", "empty", "strings")
UNKNOWN_CODES = (0, 1, 1000, 1007, 1008, 1014, 1018, 103, 9999)


@dataclass
class Generator:
    """The steps of one sequence."""

    chance: random.Random
    comparison: Comparison
    wildness: float = 0.0
    names: tuple[str, ...] = ("bn",)
    queue: list[Step] = field(default_factory=list)
    checks: int = 0

    @classmethod
    def seeded(cls, chance: random.Random, comparison: Comparison) -> Generator:
        """Return a generator; the seed sets its share of invalid steps and its number of groups."""
        wildness = chance.choice((0.0, 0.03, 0.1, 0.3))
        names = ("bn", "bn2") if chance.random() < 0.3 else ("bn",)
        return cls(chance, comparison, wildness, names)

    def next(self) -> Step:
        """Choose a step."""
        if self.queue:
            return self.queue.pop(0)
        name = self.chance.choice(self.names)
        world = self.comparison.group(name)
        step = self._wild(name, world) if self.chance.random() < self.wildness else self._sane(name, world)
        return self._encoded(step)

    def _encoded(self, step: Step) -> Step:
        if step.verb == "close" or self.chance.random() > 0.25:
            return step
        return Step(step.verb, (*step.arguments, ("as", "rocketmq")))

    def _pick(self, choices: Sequence[tuple[int, Callable[[], Step | None]]]) -> Step:
        """Pick one of the weighted choices that are possible now."""
        weights = [weight for weight, _ in choices]
        while True:
            step = self.chance.choices([make for _, make in choices], weights)[0]()
            if step is not None:
                return step

    # ---- steps of brokers and administrators

    def _sane(self, name: str, world: GroupWorld) -> Step:
        if not world.state.known:
            return self._pick(
                [
                    (10, lambda: self._apply(name, world)),
                    (1, lambda: Step.of(1012, name=name)),
                    (1, lambda: Step.of(1003, name=name, id=1, address=self._address(name, 1))),
                    (1, lambda: Step.of(1002, name=name, id=1, designate=False)),
                    (1, lambda: Step.of(1004, name=name)),
                    (1, lambda: Step.of(1011, name=name, ids=self.chance.choice((None, "1")))),
                    (1, lambda: Step.of(1001, name=name, master=1, epoch=1, set="1", setEpoch=1)),
                ]
            )
        return self._pick(
            [
                (12, lambda: self._apply(name, world)),
                (2, lambda: self._apply_again(name, world)),
                (6, lambda: self._register(name, world)),
                (14, lambda: self._heartbeat(name, world)),
                (10, lambda: self._revive(name, world)),
                (8, lambda: self._elect(name, world)),
                (5, lambda: self._designate(name, world)),
                (1, lambda: Step.of(1002, name=name, id=self.chance.choice((None, -1)))),
                (16, lambda: self._alter(name, world)),
                (6, lambda: self._alter_wrongly(name, world)),
                (6, lambda: self._close(name, world)),
                (3, lambda: self._clean(name, world)),
                (3, lambda: self._grow(name, world)),
                (2, lambda: self._lose_master(name, world)),
                (1, lambda: self._reconnect(name, world)),
                (1, lambda: self._forget_slave(name, world)),
                (4, lambda: Step.of(1004, name=name)),
                (2, lambda: Step.of(1006, name=name, names=self.chance.choice(("bn", "bn,bn2", "bn2,unknown")))),
                (3, lambda: Step.of(1012, name=name)),
                (1, lambda: Step.of(1005)),
            ]
        )

    def _address(self, name: str, broker_id: int) -> str:
        return f"10.0.{1 if name == 'bn' else 2}.{broker_id}:10911"

    def _check(self, name: str, broker_id: int) -> str:
        self.checks += 1
        return f"{self._address(name, broker_id)};{self.checks}"

    def _member(self, world: GroupWorld, *, alive: bool | None = None) -> int | None:
        members = [
            one for one, standing in sorted(world.state.members.items()) if alive is None or standing.alive is alive
        ]
        return self.chance.choice(members) if members else None

    def _apply(self, name: str, world: GroupWorld) -> Step | None:
        if len(world.state.members) >= MOST_MEMBERS:
            return None
        broker_id = world.memory.highest_id + 1
        if self.chance.random() < 0.7:
            self.queue += [self._register_as(name, broker_id)]
        if self.chance.random() < 0.8:
            self.queue += [self._beat(name, world, broker_id)]
        return Step.of(1013, name=name, id=broker_id, check=self._check(name, broker_id))

    def _apply_again(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world)
        if broker_id is None:
            return None
        check = world.memory.check_codes.get(broker_id) if self.chance.random() < 0.6 else self._check(name, broker_id)
        return Step.of(1013, name=name, id=broker_id, check=check)

    def _register_as(self, name: str, broker_id: int) -> Step:
        return Step.of(1003, name=name, id=broker_id, address=self._address(name, broker_id))

    def _register(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world)
        if broker_id is None or (broker_id == world.state.master and self.chance.random() < 0.9):
            return None
        if self.chance.random() < 0.9:
            self.queue += [self._beat(name, world, broker_id)]
        slot = broker_id if self.chance.random() < 0.85 else self.chance.choice((1, 2, 11, 12, 21, 22))
        return Step.of(1003, name=name, id=broker_id, address=self._address(name, slot))

    def _beat(self, name: str, world: GroupWorld, broker_id: int, **more: object) -> Step:
        offset = max(world.memory.told_most.get(broker_id, (0, 0))[1], 0)
        standing = world.state.members.get(broker_id)
        address = standing.address if standing is not None else self._address(name, broker_id)
        if world.state.epoch > 0:
            offset += self.chance.choice((0, 1, 100, 5000))
        priority = None if self.chance.random() < 0.8 else self.chance.randint(0, 3)
        return Step.of(
            "heartbeat",
            name=name,
            id=broker_id,
            address=address,
            epoch="@",
            maxOffset=offset,
            priority=priority,
            **more,
        )

    def _heartbeat(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world, alive=True)
        return None if broker_id is None else self._beat(name, world, broker_id)

    def _revive(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world, alive=False)
        if broker_id is None:
            return None
        return self._beat(name, world, broker_id, oneway=True if self.chance.random() < 0.5 else None)

    def _elect(self, name: str, world: GroupWorld) -> Step | None:
        first = world.state.epoch == 0 and self.chance.random() < 0.9
        if first and (unheard := self._member(world, alive=False)) is not None:
            return self._beat(
                name, world, unheard
            )  # ours waits for each before it elects, and a deviation ends the sequence
        broker_id = self._member(world, alive=True if first else None)
        return None if broker_id is None else Step.of(1002, name=name, id=broker_id, designate=False)

    def _designate(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world)
        if world.state.epoch == 0 or broker_id is None:
            return None
        return Step.of(1002, name=name, id=broker_id, designate=True)

    def _alter(self, name: str, world: GroupWorld) -> Step | None:
        state = world.state
        if state.master is None:
            return None
        others = sorted(state.alive - {state.master})
        members = {state.master, *(one for one in others if self.chance.random() < 0.7)}
        return self._altered(name, state.master, members)

    def _altered(self, name: str, master: object, members: object, epoch: str = "@", set_epoch: str = "@") -> Step:
        members = self.chance.sample(sorted(members), len(members))  # type: ignore[call-overload, arg-type]
        return Step.of(1001, name=name, master=master, epoch=epoch, set=members, setEpoch=set_epoch)

    def _alter_wrongly(self, name: str, world: GroupWorld) -> Step | None:  # noqa: PLR0911 - one return per way
        state = world.state
        wrong = self.chance.choice(("master", "epoch", "set_epoch", "unknown", "dead", "without", "several"))
        members = set(state.alive) | ({state.master} if state.master is not None else set())
        off = self.chance.choice(("@-1", "@+1", "@+8"))
        if wrong == "master":
            return self._altered(name, self.chance.choice((1, 2, 9)), members or {1})
        if wrong == "epoch":
            return self._altered(name, state.master, members, epoch=off)
        if wrong == "set_epoch":
            return self._altered(name, state.master, members, set_epoch=off)
        if wrong == "unknown":
            return self._altered(name, state.master, members | {self.chance.choice((9, 17, 18, 33, -3))})
        if wrong == "dead":
            return self._altered(name, state.master, members | set(state.members))
        if wrong == "several":
            return self._altered(
                name, state.master, members | {9, 17} | set(state.members), epoch=self.chance.choice((off, "@"))
            )
        return self._altered(name, state.master, members - {state.master})

    def _close(self, name: str, world: GroupWorld) -> Step | None:
        broker_id = self._member(world, alive=True)
        if broker_id is None or self.chance.random() < 0.5:
            return None
        connection = world.memory.our_connection.get(broker_id)
        if connection is None or world.memory.java_connection.get(broker_id) != connection:
            return None
        return Step.of("close", name=name, id=broker_id, conn=None if connection == "a" else connection)

    def _clean(self, name: str, world: GroupWorld) -> Step | None:
        kind = self.chance.choice(("dead", "dead", "alive", "unknown", "whole", "whole living", "living"))
        if kind == "whole living" and self.chance.random() < 0.6:
            return None
        dead, alive = self._member(world, alive=False), self._member(world, alive=True)
        ids = {"dead": dead, "alive": alive, "unknown": "77", "living": alive}.get(kind)
        if ids is None and not kind.startswith("whole"):
            return None
        living = kind in ("whole living", "living")
        return Step.of(1011, name=name, ids=ids, living=True if living else self.chance.choice((None, False)))

    # ---- scenes of several steps

    def _grow(self, name: str, world: GroupWorld) -> Step | None:
        """All members catch up and join the set, with equal or distant offsets."""
        state = world.state
        if state.master is None or len(state.members) < 3 or not state.is_alive(state.master):
            return None
        gap = self.chance.choice((0, 0, 1, 2**31 + 9))
        level = max([0, *(most[1] for most in world.memory.told_most.values())])
        for one in sorted(state.members):
            standing, offset = state.members[one], level + (gap if one % 2 else 0)
            self.queue.append(
                Step.of("heartbeat", name=name, id=one, address=standing.address, epoch="@", maxOffset=offset)
            )
        self.queue.append(self._altered(name, state.master, set(state.members)))
        return self.queue.pop(0)

    def _forget_slave(self, name: str, world: GroupWorld) -> Step | None:
        """A member of the set dies and is cleaned before the master removes it."""
        state = world.state
        slaves = sorted((state.sync_state_set & state.alive) - {state.master})
        if state.master is None or not slaves or not all(world.memory.our_connection.get(one) == "a" for one in slaves):
            return None
        self.queue.append(Step.of(1011, name=name, ids=slaves[0]))
        return Step.of("close", name=name, id=slaves[0])

    def _lose_master(self, name: str, world: GroupWorld) -> Step | None:
        """The master dies; a follower's present process may have reported less than its earlier one."""
        state = world.state
        others = sorted((state.sync_state_set & state.alive) - {state.master})
        if state.master is None or not others or not state.is_alive(state.master):
            return None
        close = Step.of("close", name=name, id=state.master)
        connection = world.memory.our_connection.get(state.master)
        if connection not in (None, "a"):
            close = Step.of("close", name=name, id=state.master, conn=connection)
        if self.chance.random() < 0.7:
            return close
        self.queue.append(close)
        one = self.chance.choice(others)
        return Step.of("heartbeat", name=name, id=one, address=state.members[one].address, epoch="@", maxOffset=1)

    def _reconnect(self, name: str, world: GroupWorld) -> Step | None:
        """Heartbeats move to another connection, and one of the two ends."""
        broker_id = self._member(world, alive=True)
        connection = None if broker_id is None else world.memory.our_connection.get(broker_id)
        if broker_id is None or connection is None:
            return None
        other = "b" if connection == "a" else "a"
        self.queue.append(Step.of("close", name=name, id=broker_id, conn=self.chance.choice((connection, other))))
        return self._beat(name, world, broker_id, conn=other)

    # ---- invalid steps

    def _wild(self, name: str, world: GroupWorld) -> Step:
        number, text = self._number(world), self.chance.choice(TEXTS)
        alter = self._alter(name, world) or Step.of(1001, name=name, master=1, epoch="@", set="1", setEpoch="@")
        any_name = self.chance.choice((name, "null", "", "bn3"))
        cluster = self.chance.choice((None, "null", "other", ""))
        address = self._address(name, self.chance.randint(1, 5))
        return self._pick(
            [
                (3, lambda: Step.of(1013, name=name, id=number, check=self._check(name, 5))),
                (2, lambda: Step.of(1013, name=name, id=world.memory.highest_id + 1, check=text, cluster=cluster)),
                (2, lambda: Step.of(1003, name=name, id=number, address=address)),
                (1, lambda: Step.of(1003, name=name, id=number, address=self._address(name, 31), cluster=cluster)),
                (1, lambda: Step.of(1003, name=name, id=1, address=self.chance.choice(TEXTS))),
                (
                    3,
                    lambda: Step.of(
                        1002, name=name, id=number, designate=self.chance.choice((True, False, "x", "TRUE"))
                    ),
                ),
                (2, lambda: Step((alter.verb), (*alter.arguments, ("body", self.chance.choice(BODIES))))),
                (
                    2,
                    lambda: Step.of(1001, name=name, master=number, epoch=self._number(world), set="1,2", setEpoch="@"),
                ),
                (1, lambda: Step.of(1001, name=any_name, body="strings", set="1")),
                (
                    2,
                    lambda: Step.of(
                        1011, name=name, ids=self.chance.choice(("a;b", "1;x", "77;78", "-1", "+1", "1;;2"))
                    ),
                ),
                (2, lambda: self._beat_wildly(name, world, number)),
                (1, lambda: Step.of(1012, name=any_name, cluster=cluster)),
                (1, lambda: Step.of(1004, name=any_name)),
                (1, lambda: Step.of(1006, names=name, body=self.chance.choice(BODIES[:-1]))),
                (1, lambda: Step.of(self.chance.choice((1001, 1002, 1003, 1004, 1011, 1012, 1013)), fields="none")),
                (1, lambda: Step.of(self.chance.choice(UNKNOWN_CODES))),
                (1, lambda: Step.of(1009, text=self.chance.choice((None, "noSuchKey=1", "configStorePath=x")))),
                (1, lambda: Step.of(1010)),
            ]
        )

    def _number(self, world: GroupWorld) -> str:
        return self.chance.choice((*NUMBERS, *(str(one) for one in world.state.members)))

    def _beat_wildly(self, name: str, world: GroupWorld, number: str) -> Step:
        if self.chance.random() < 0.5:
            return Step.of("heartbeat", name=name, id=number, epoch=self.chance.choice(NUMBERS))
        cluster = self.chance.choice((None, None, "other", "null"))
        connection = self.chance.choice(("a", "b")) if cluster is None else "c"
        broker_id = self._member(world) or 1
        return Step.of(
            "heartbeat",
            name=name,
            id=broker_id,
            conn=connection,
            cluster=cluster,
            epoch=self.chance.choice(("@", "@-1", "0", "@+3")),
            maxOffset=self.chance.choice((0, 5, 2**31 + 7, 2**33)),
        )
