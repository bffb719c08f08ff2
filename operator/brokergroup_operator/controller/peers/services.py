"""What every part of a plane works with: its settings, its calls, the other planes, and the tasks that run beside requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
    from brokergroup_operator.controller.peers.planes import Planes
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


class BackgroundTasks:
    """Keeps tasks referenced while they run, logs those that fail, and cancels at the end those that still run."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def start(
        self,
        work: Coroutine[Any, Any, Result],
        name: str,
        *,
        on_end: Callable[[asyncio.Task[Result]], object] | None = None,
    ) -> asyncio.Task[Result]:
        """Run this beside the caller. A failure is logged; the next tick of the plane begins such work again."""
        task = self.keep(asyncio.create_task(work, name=name))
        if on_end is not None:
            task.add_done_callback(on_end)
        return task

    def keep(self, task: asyncio.Task[Result]) -> asyncio.Task[Result]:
        """The same with a task that runs already."""
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed, the next look begins it again", task=task.get_name(), error=repr(error))


def is_running(task: asyncio.Task[Any] | None) -> bool:
    """Whether there is such a task, and it has not ended."""
    return task is not None and not task.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each for a plane."""

    settings: PlaneSettings
    observer: Observer
    calls: BrokerCalls
    planes: Planes
    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)


class Part:
    """A part of a plane, which looks after all groups."""

    def __init__(self, services: Services) -> None:
        self._settings, self._observer = services.settings, services.observer
        self._calls, self._planes, self._tasks = services.calls, services.planes, services.tasks
