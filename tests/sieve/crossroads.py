"""Many perturbations of a workload from one walk: at each place the process forks, once for each fault chosen there.

Runs are deterministic, so all perturbations share the steps before their place. The walk continues undisturbed; a child gets
its fault there, runs to the end, is judged and exits. A perturbation costs only the steps after it, without any copying
in code: the process is the whole world, with its loop and its clock. There are no threads, and the network is in memory
too, so a fork loses no state.
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
    """Runs at most ``at_once`` children at a time, and keeps their outcomes."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._running: dict[int, Perturbation] = {}
        self.ended: dict[Perturbation, int] = {}

    def fork(self, perturbation: Perturbation) -> bool:
        """Fork; return whether this process is the child."""
        while len(self._running) >= self._at_once:
            self._wait()
        sys.stdout.flush()
        sys.stderr.flush()
        loop = asyncio.get_running_loop()
        pid = os.fork()
        if pid:
            self._running[pid] = perturbation
        else:
            # asyncio binds a running loop to one process id; here it continues in the child.
            asyncio._set_running_loop(loop)
        return pid == 0

    def wait_all(self) -> None:
        """Wait until the last child has ended."""
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
        """Return None in the walk itself; in a child its fault, once."""
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
    """Run a story (which judges itself) with each perturbation; return each outcome, and print its complaints."""
    children = Children(at_once)
    crossroads = Crossroads(chosen, children)
    # The garbage collector would make a child copy every page that it touches. No run is long enough to need it.
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
        # In one write: the other children write to the same file.
        sys.stdout.write("\n".join([f"\n{heading}", *(f"    {line}" for line in wrong), ""]))
    _leave(DIVERGED if wrong else AS_IT_SHOULD)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def places(counts: object, faults: Collection[Fault], every: int = 1) -> Iterator[Perturbation]:
    """Yield each fault at every write that it fits, and at each read and event whose number `every` divides."""
    for fault in faults:
        for number in range(len(getattr(counts, fault.target))):
            if fault.target == "write" or number % every == 0:
                yield Perturbation(fault, number)
