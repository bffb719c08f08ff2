"""One story: a group is created, its spec changes some times, then is restored. After each change `oracles` check its state.

A stalled group must recover: a change that ends explained is reverted at once, and the group must then be as before it. At
the end the first spec is restored, and every object must be as it was (except times, versions and epochs, and changes that
the API cannot revert, such as a grown claim). The last spec that was reached is also given to a new group
in a separate world: it must end like the changed one.
"""

from __future__ import annotations

import contextlib
import copy
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from brokergroup_operator.kube.errors import InvalidError, NotFoundError
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile import reconciler
from tests.fuzz import oracles
from tests.fuzz.changes import drawn_leaves
from tests.fuzz.hints import KEPT_SHOWS_IN
from tests.fuzz.schema import steps
from tests.fuzz.world import FuzzWorld
from tests.sieve.run import differences as state_differences
from tests.sieve.workloads import condition
from tests.sieve.world import NAMESPACE
from tests.support.memory_api import BEGINNING_UNIX_SECONDS
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.fuzz.admission import Spec
    from tests.fuzz.changes import Change

SHOWN = 10
# A reason in a tally: meanwhile a person had to allow a successor of the master.
BY_A_PERSON = "LetOneFollow"
# By a person, of pods.
MOST_RESTARTS = 40


class ViolationError(AssertionError):
    """A broken oracle."""


@dataclass
class Tally:
    """The counts of a run of stories."""

    transitions: int = 0
    refused: int = 0
    reached: int = 0
    explained: int = 0
    rolled_back: int = 0
    drawn: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)


def _fail(what: str, lines: list[str]) -> None:
    if lines:
        raise ViolationError(f"{what}:\n  " + "\n  ".join(lines[:SHOWN]))


class Story:
    """Tells one story in one world."""

    def __init__(self, world: FuzzWorld, tally: Tally) -> None:
        self._world = world
        self._tally = tally
        self.spec: Spec = {}

    async def begin(self, spec: Spec) -> bool:
        """Create the group; return whether its declared state is reached."""
        await self._world.begin()
        self._tally.drawn |= drawn_leaves({}, spec)
        self.spec = spec
        await self._world.wish(spec)
        is_reached = await self._at_rest()
        self.spec = await self._as_stored()
        return is_reached

    async def _as_stored(self) -> Spec:
        """The spec with its durability, which is the one of the group's beginning if no wish said one."""
        group = await self._world.group()
        return self.spec | {"durability": group["spec"].get("durability") or group["status"]["durability"]}

    async def change(self, wish: Change) -> None:
        """Put another spec in place, and see it reached, explained (and then healed by going back) or refused."""
        before, old = await oracles.snapshot(self._world), self.spec
        self._tally.transitions += 1
        try:
            await self._world.wish(wish.spec)
        except InvalidError as error:
            self._tally.refused += 1
            _fail("the refusal names no field that was changed", _unnamed(error, old, wish))
            return
        self._tally.drawn |= drawn_leaves(old, wish.spec)
        self.spec = wish.spec
        is_reached = await self._at_rest()
        self.spec = await self._as_stored()
        if is_reached:
            self._tally.reached += 1
            return
        self._tally.explained += 1
        await self.go_back(old, before)

    async def go_back(self, spec: Spec, before: dict[str, Any]) -> None:
        """Restore the earlier spec; the state must be as before."""
        kept = await self._put_back(spec)
        if not await self._at_rest() and not await self._let_one_follow_meanwhile():
            raise ViolationError(f"going back does not heal: {oracles.explanation(await self._world.group())}")
        after = await oracles.snapshot(self._world)
        lines = [line for line in state_differences(before, after) if not any(one in line for one in kept)]
        _fail("going back leads elsewhere", lines)
        self._tally.rolled_back += 1

    async def _let_one_follow_meanwhile(self) -> bool:
        """Follow the condition's advice if the restored spec allows only the present master to lead."""
        if not oracles.waits_for_a_successor(await self._world.group()):
            return False
        self._tally.reasons.add(BY_A_PERSON)
        failover = {name: value for name, value in self.spec["failover"].items() if name != "priorities"}
        for spec in ({**self.spec, "failover": failover}, self.spec):
            await self._world.wish(spec)
            if not await self._at_rest():
                return False
        return True

    async def _put_back(self, spec: Spec) -> list[str]:
        """Restore the spec; return the fields that the API does not let change back."""
        spec, kept = copy.deepcopy(spec), []
        while True:
            try:
                await self._world.wish(spec)
            except InvalidError as error:
                (field_name,) = {message.partition(":")[0] for message in error.field_messages}
                if field_name in kept:
                    raise
                kept.append(field_name)
                _copy_field(self.spec, spec, field_name)
            else:
                self.spec = spec
                words = [word for name in kept for word in steps(name)]
                return words + [shown for word in words for shown in KEPT_SHOWS_IN.get(word, ())]

    async def _at_rest(self) -> bool:
        """Whether the declared state is reached, after the steps that only a person takes."""
        group = await self._world.rest()
        for _ in range(MOST_RESTARTS):
            if not await self._restart_by_hand(group):
                break
            group = await self._world.rest()
        _fail("broken on the way", self._world.laws_broken)
        if not oracles.is_current(group):
            raise ViolationError(f"the status is about another generation: {group.get('status')}")
        if oracles.is_reached(group):
            _fail("the conditions say that the spec is reached, and it is not", await oracles.differences(self._world))
            return True
        told = oracles.explanation(group)
        if not told:
            shown = [
                f"{one['type']} {one['status']} {one['reason']}: {one['message']}"
                for one in group["status"]["conditions"]
            ]
            raise ViolationError("neither reached nor explained:\n  " + "\n  ".join(shown))
        self._tally.reasons.add(" ".join(told.split()[:2]))
        return False

    async def _restart_by_hand(self, group: dict[str, Any]) -> bool:
        """Delete the first pod that an update leaves to a person; while the group is stalled, only a pod that is not in sync."""
        told = oracles.left_to_a_person(group)
        if told:
            self._tally.reasons.add("UpToDate WaitingForPerson")
        needed = oracles.in_sync(group) if condition(group, "Stalled") == "True" else set()
        pods = [pod for pod in re.findall(r"\bbn-\d+\b", told) if pod not in needed]
        if not pods:
            return False
        with contextlib.suppress(NotFoundError):
            await self._world.api.delete(PODS, pods[0], namespace=NAMESPACE)
        return True


def _unnamed(error: InvalidError, old: Spec, wish: Change) -> list[str]:
    """Return complaints that do not name the changed field."""
    changed = {word for path in drawn_leaves(old, wish.spec) | {wish.leaf} for word in steps(path) if word.isalpha()}
    said = [message for message in error.field_messages if not message.startswith("<nil>")]
    named = {word for message in said for word in re.findall(r"[A-Za-z]+", message)}
    in_spec = [message for message in said if message.lstrip(".").startswith("spec")]
    return [] if said and len(in_spec) == len(said) and named & changed else [str(error)]


def _copy_field(source: Spec, target: Spec, name: str) -> None:
    *holders, last = name.split(".")[1:]
    for holder in holders:
        source, target = source.get(holder, {}), target.setdefault(holder, {})
    if last in source:
        target[last] = source[last]
    else:
        target.pop(last, None)


def in_virtual_time(tell: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    """Run with the product's wall clock in virtual time too: ages must follow the API's clock."""
    loop = VirtualLoop()
    clock = SimpleNamespace(time=lambda: BEGINNING_UNIX_SECONDS + loop.time())
    try:
        with mock.patch.object(reconciler, "time", clock):
            loop.run_until_complete(loop.create_task(tell(loop)))
    finally:
        loop.finish()


def told(base: Spec, draw_change: Callable[[Spec], Change | None], tally: Tally) -> None:
    """Run a new group through all changes and back; then create a new group with the last spec."""
    ends: list[tuple[Spec, dict[str, Any]]] = []

    async def there_and_back(loop: VirtualLoop) -> None:
        story = Story(FuzzWorld(loop), tally)
        if not await story.begin(base):
            return
        first, before = story.spec, await oracles.snapshot(story._world)
        while (wish := draw_change(story.spec)) is not None:
            await story.change(wish)
        if story.spec != first:
            ends.append((story.spec, await oracles.snapshot(story._world)))
            await story.go_back(first, before)

    in_virtual_time(there_and_back)

    async def afresh(loop: VirtualLoop) -> None:
        ((spec, by_transition),) = ends
        story = Story(FuzzWorld(loop), tally)
        if not await story.begin(spec):
            raise ViolationError("what changes led to is not reached by a new group")
        _fail(
            "a new group ends elsewhere", list(state_differences(by_transition, await oracles.snapshot(story._world)))
        )

    if ends:
        in_virtual_time(afresh)
