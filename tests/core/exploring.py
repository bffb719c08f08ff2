"""Walks through the data world: all of them breadth first, one at random, or a recorded one."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.core.data_model import JUMP, BarredError, MessageLostError, Rules, World
from tests.core.data_world import ways


@dataclass
class Explored:
    """The result of an exploration."""

    states: int
    exhausted: bool
    found: str | None
    way: tuple[str, ...]
    reached: frozenset[str]


def explore(
    first: World, rules: Rules, *, at_most: int, goals: dict[str, Callable[[World], bool]] | None = None
) -> Explored:
    """Walk breadth first until a message is lost, all states were visited, or the limit of states is reached."""
    came_from: dict[World, tuple[World | None, str]] = {first: (None, "")}
    frontier = [first]
    reached: set[str] = set()
    while frontier:
        following: list[World] = []
        for world in frontier:
            for name, test in (goals or {}).items():
                if name not in reached and test(world):
                    reached.add(name)
            try:
                for label, after in ways(world, rules):
                    if after not in came_from and _within(after, rules):
                        came_from[after] = (world, label)
                        following.append(after)
            except (MessageLostError, BarredError) as error:
                return Explored(
                    len(came_from),
                    exhausted=False,
                    found=str(error),
                    way=_way(came_from, world),
                    reached=frozenset(reached),
                )
        if len(came_from) > at_most:
            return Explored(len(came_from), exhausted=False, found=None, way=(), reached=frozenset(reached))
        frontier = following
    return Explored(len(came_from), exhausted=True, found=None, way=(), reached=frozenset(reached))


def _within(world: World, rules: Rules) -> bool:
    raised = JUMP if world.record.sync_state_set_epoch >= JUMP else 0
    return world.record.sync_state_set_epoch - raised <= rules.last_set_epoch


def walk(
    first: World, rules: Rules, chance: Random, *, steps: int, goals: dict[str, Callable[[World], bool]]
) -> set[str]:
    """Walk at random to the end; return the goals reached. Raises the world's error, with the steps so far."""
    world, way, reached = first, list[str](), set[str]()
    for _ in range(steps):
        try:
            open_ways = [(label, after) for label, after in ways(world, rules) if after != world]
        except (MessageLostError, BarredError) as error:
            raise type(error)(f"{error}, after {'; '.join(way)}") from None
        if not open_ways:
            break
        label, world = chance.choice(open_ways)
        way.append(label)
        reached.update(name for name, test in goals.items() if test(world))
    return reached


def follow(first: World, rules: Rules, way: str) -> World:
    """Repeat a recorded walk; raises the world's error. Skips a step that is no longer possible."""
    world = first
    for label in way.split("; "):
        world = dict(ways(world, rules)).get(label, world)
    list(ways(world, rules))
    return world


def _way(came_from: dict[World, tuple[World | None, str]], world: World) -> tuple[str, ...]:
    labels: list[str] = []
    at: World | None = world
    while at is not None:
        at, label = came_from[at]
        labels.append(label)
    return tuple(reversed([label for label in labels if label]))
