"""One pass over one group: fetch, evaluate, apply. The only stateful thing is what the API server holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.observe.group_view import GroupUnknownError
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.status import rfc3339

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.apply import PlanApplier
    from brokergroup_operator.reconcile.fetch import GroupFetcher
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
# The controller plane learns of a new group by its own watch; it is there in a moment.
GROUP_UNKNOWN_SECONDS = 0.2


class Reconciler:
    """Runs passes."""

    def __init__(self, fetcher: GroupFetcher, applier: PlanApplier, settings: ReconcileSettings) -> None:
        self._fetcher = fetcher
        self._applier = applier
        self._settings = settings

    async def run_pass(self, key: GroupKey) -> float | None:
        """Bring the group one step nearer to its spec; returns in how many seconds to look again."""
        seen = await self._fetcher.fetch(key)
        if seen is None:
            return None
        plan = evaluate(seen, self._settings, now=rfc3339(time.time()))
        try:
            applied = await self._applier.carry_out(key, plan, seen)
        except GroupUnknownError as error:
            log.info("reconcile.waits_for_controller_plane", group=str(key), error=str(error))
            return GROUP_UNKNOWN_SECONDS
        # Reserved ids are in the record now: the pods they are for can be created at once.
        return 0.0 if applied.ids_reserved else plan.look_again_seconds
