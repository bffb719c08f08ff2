"""One pass over the operations of one group: evaluate, apply. Called after each pass over the group itself, with what that saw.

It ends without a request if that leaves nothing to do. Otherwise the group is read anew, unless the pass read it from the API and
did nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api.names import operator_of
from brokergroup_operator.kube.errors import ConflictError
from brokergroup_operator.operations.apply import StepApplier
from brokergroup_operator.operations.attempts import Attempts
from brokergroup_operator.operations.evaluate import evaluate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.operations.plan import PassPlan
    from brokergroup_operator.operations.scene import Scene
    from brokergroup_operator.operations.settings import OperationSettings
    from brokergroup_operator.operations.verdicts import Outcome
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)


class OperationRunner:
    """Runs passes. `read` reads a group with its operations from the API; None where it has none.

    `wake` queues a group when something that was asked of the controller plane has ended.
    """

    def __init__(
        self,
        api: KubernetesApi,
        view: GroupView,
        settings: OperationSettings,
        *,
        read: Callable[[GroupKey], Awaitable[Scene | None]],
        wake: Callable[[GroupKey], None],
    ) -> None:
        self._settings = settings
        self._read = read
        self._attempts = Attempts(wake)
        self._applier = StepApplier(api, view, self._attempts, timeout_seconds=settings.api_timeout_seconds)

    def outcomes(self, key: GroupKey) -> Mapping[str, Outcome]:
        """Of this process's requests. Before the record is read: none may be older than the record it is judged with."""
        return self._attempts.outcomes(key)

    async def run_pass(
        self, key: GroupKey, seen: Scene | None = None, outcomes: Mapping[str, Outcome] | None = None
    ) -> float | None:
        """Bring the group's operations one step on; returns in how many seconds to look again.

        `seen`: what the pass over the group saw, and `outcomes` those from before that; None: the API must be read.
        """
        looked = self._judged(key, seen, outcomes or {}) if seen is not None else None
        if looked is not None and not looked[1].steps:
            return looked[1].look_again_seconds
        if looked is None or not looked[0].is_newest:
            looked = await self._look(key)
        if looked is not None and looked[1].ends_badly:
            # There is no way back from Rejected or Failed, so it takes two looks: one answer may have been from the past.
            looked = await self._look(key)
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

    async def _look(self, key: GroupKey) -> tuple[Scene, PassPlan] | None:
        """Return what there is now and the plan for it; None where the group has no operation, or is another operator's."""
        outcomes = self.outcomes(key)
        scene = await self._read(key)
        if scene is None:
            self._attempts.forget_all_but(key, ())
            return None
        return self._judged(key, scene, outcomes)

    def _judged(self, key: GroupKey, scene: Scene, outcomes: Mapping[str, Outcome]) -> tuple[Scene, PassPlan] | None:
        if scene.group is not None and operator_of(scene.group) != self._settings.operator:
            return None
        if scene.is_newest:
            self._attempts.forget_all_but(key, [item.uid for item in scene.operations if not item.finished])
        elif not scene.operations and self._attempts.has_any(key):
            return None
        return scene, evaluate(scene, outcomes, self._settings)

    async def stop(self) -> None:
        """Cancel what waits for answers."""
        await self._attempts.stop()
