"""Many perturbations of a workload from one walk through it: at each place the process forks, once for each fault chosen there.

The run is the same twice, so all perturbations share what lies before their place. The walk goes on undisturbed; a child meets
its fault there, lives to its end, is judged and exits. What a perturbation costs is what comes after it, and nothing is copied
by hand: the whole world, its loop and its clock included, is the process. There are no threads, and the network is in memory
too, so there is nothing a fork could leave behind.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from typing import TYPE_CHECKING

from tests.sieve.perturbed_api import Fault, Perturbation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

AS_IT_SHOULD, DIVERGED, BROKEN = 0, 1, 2


class Children:
    """At most ``at_once`` at one time; how they ended is kept."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._running: dict[int, Perturbation] = {}
        self.ended: dict[Perturbation, int] = {}

    def fork(self, perturbation: Perturbation) -> bool:
        """Whether we are the child."""
        while len(self._running) >= self._at_once:
            self._wait()
        sys.stdout.flush()
        sys.stderr.flush()
        loop = asyncio.get_running_loop()
        pid = os.fork()
        if pid:
            self._running[pid] = perturbation
        else:
            # The loop that runs is that of one process alone, by its number; here it runs on.
            asyncio._set_running_loop(loop)
        return pid == 0

    def wait_all(self) -> None:
        """Until the last one has ended."""
        while self._running:
            self._wait()

    def _wait(self) -> None:
        pid, status = os.wait()
        self.ended[self._running.pop(pid)] = os.waitstatus_to_exitcode(status)


class Crossroads:
    """The plan of a run that forks a child for each chosen perturbation."""

    def __init__(self, chosen: Collection[Perturbation], children: Children) -> None:
        self._chosen = frozenset(chosen)
        self._children = children
        self.taken: Perturbation | None = None

    def fault_at(self, target: str, number: int) -> Fault | None:
        """None in the walk itself; in a child its fault, once."""
        if self.taken is not None:
            return None
        for fault in Fault:
            perturbation = Perturbation(fault, number)
            if fault.target == target and perturbation in self._chosen and self._children.fork(perturbation):
                self.taken = perturbation
                return fault
        return None


def walk(
    story: Callable[[Crossroads], list[str]],
    chosen: Collection[Perturbation],
    *,
    at_once: int,
    heading: Callable[[Perturbation], str],
) -> dict[Perturbation, int]:
    """Tell a story (which judges itself) with each perturbation; returns how each ended, and prints what is wrong with it."""
    children = Children(at_once)
    crossroads = Crossroads(chosen, children)
    # A child would copy every page that its collector looks at. No run is long enough to need one.
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        wrong = story(crossroads)
        if crossroads.taken is not None:
            _exit(heading(crossroads.taken), wrong)
        children.wait_all()
    except BaseException:
        if crossroads.taken is not None:
            print(heading(crossroads.taken), file=sys.stderr)
            traceback.print_exc()
            _leave(BROKEN)
        raise
    finally:
        gc.unfreeze()
        gc.enable()
    if wrong:
        raise RuntimeError(f"undisturbed, and not as before: {wrong}")
    return children.ended


def _exit(heading: str, wrong: list[str]) -> None:
    if wrong:
        # In one piece: the others write to the same place.
        sys.stdout.write("\n".join([f"\n{heading}", *(f"    {line}" for line in wrong), ""]))
    _leave(DIVERGED if wrong else AS_IT_SHOULD)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def places(counts: object, faults: Collection[Fault], every: int = 1) -> Iterator[Perturbation]:
    """Each fault at every write that it fits, and at each read and event whose number `every` divides."""
    for fault in faults:
        for number in range(len(getattr(counts, fault.target))):
            if fault.target == "write" or number % every == 0:
                yield Perturbation(fault, number)
