"""One pass over the operations of one group: fetch, evaluate, apply. Called after each pass over the group itself.

As a pass over the group, it ends without a request if what the watches last said leaves nothing to do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api.names import operator_of
from brokergroup_operator.kube.errors import ConflictError
from brokergroup_operator.operations.apply import StepApplier
from brokergroup_operator.operations.attempts import Attempts
from brokergroup_operator.operations.evaluate import evaluate
from brokergroup_operator.operations.fetch import SceneFetcher
from brokergroup_operator.operations.plan import PassPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.operations.fetch import UnsafeNow
    from brokergroup_operator.operations.scene import Scene
    from brokergroup_operator.operations.settings import OperationSettings
    from brokergroup_operator.operations.verdicts import Outcome
    from brokergroup_operator.records.group_cache import GroupCache
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)


class OperationRunner:
    """Runs passes; `wake` queues a group when something that was asked of the controller plane has ended."""

    def __init__(
        self,
        api: KubernetesApi,
        view: GroupView,
        settings: OperationSettings,
        *,
        unsafe_now: UnsafeNow,
        wake: Callable[[GroupKey], None],
        clock: Callable[[], float] = time.time,
        cache: GroupCache | None = None,
    ) -> None:
        self._settings = settings
        self._attempts = Attempts(wake)
        self._fetcher = SceneFetcher(
            api, view, unsafe_now=unsafe_now, timeout_seconds=settings.api_timeout_seconds, clock=clock, cache=cache
        )
        self._applier = StepApplier(api, view, self._attempts, timeout_seconds=settings.api_timeout_seconds)

    async def run_pass(self, key: GroupKey) -> float | None:
        """Bring the group's operations one step on; returns in how many seconds to look again."""
        # Before the record is read: an outcome that is known must never be older than the record it is judged with.
        outcomes = self._attempts.outcomes(key)
        if (settled := self._settled(key, outcomes)) is not None:
            return settled.look_again_seconds
        looked = await self._look(key, outcomes)
        if looked is not None and looked[1].ends_badly:
            # There is no way back from Rejected or Failed, so it takes two looks: one answer may have been from the past.
            looked = await self._look(key, outcomes)
        if looked is None:
            return None
        scene, plan = looked
        try:
            await self._applier.carry_out(scene, plan)
        except ConflictError as error:
            # Another writer was first, perhaps another operator: look again at what there is now.
            log.info("operation.conflict", group=str(key), error=str(error))
            return 0.0
        return plan.look_again_seconds

    def _settled(self, key: GroupKey, outcomes: Mapping[str, Outcome]) -> PassPlan | None:
        """Return the plan by what the watches last said if it does nothing; None: the API must be read."""
        scene = self._fetcher.look(key)
        if scene is None:
            return None
        if not scene.operations:
            return None if self._attempts.has_any(key) else PassPlan()
        if scene.group is None or operator_of(scene.group) != self._settings.operator:
            return None
        plan = evaluate(scene, outcomes, self._settings)
        return None if plan.steps else plan

    async def _look(self, key: GroupKey, outcomes: Mapping[str, Outcome]) -> tuple[Scene, PassPlan] | None:
        """Return what there is now and the plan for it; None where the group has no operation."""
        scene = await self._fetcher.fetch(key)
        if scene is None:
            self._attempts.forget_all_but(key, ())
            return None
        if scene.group is not None and operator_of(scene.group) != self._settings.operator:
            return None
        self._attempts.forget_all_but(key, [item.uid for item in scene.operations if not item.finished])
        return scene, evaluate(scene, outcomes, self._settings)

    async def stop(self) -> None:
        """Cancel what waits for answers."""
        await self._attempts.stop()
