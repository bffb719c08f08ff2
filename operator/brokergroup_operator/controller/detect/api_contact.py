"""For how long this plane has not reached the Kubernetes API: the pods' fences ask it (ADR 8).

A plane that is cut off from the API goes on answering from its copies, and can elect no master, while another one may. Small reads
that only etcd can answer show on which side of a cut it is. A lost connection holds up one of them and not the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.controller.peers.services import BackgroundTasks
from brokergroup_operator.fence.processes import boot_seconds
from brokergroup_operator.kube.errors import ApiError, NotFoundError, is_forbidden
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from brokergroup_operator.kube.client import KubernetesApi

PERIOD_SECONDS: Final = 0.5
# A slow API is no cut: an answer counts from its request, so it may take almost as long as the fences wait (4.5 s by default).
READ_SECONDS: Final = 4.0
# One each period, also while none is answered in time.
MOST_AT_A_TIME: Final = 8
# Of no group, so the answer is a short 404, and never an object of unknown size.
NAME_THAT_NO_GROUP_HAS: Final = "brokergroup.dev.api-contact"

log = structlog.get_logger(__name__)


class ApiContact:
    """``read`` raises ApiError if it fails. ``clock`` must go on while the machine is suspended, as others elect meanwhile."""

    def __init__(
        self, read: Callable[[], Coroutine[None, None, object]], *, clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._read, self._clock = read, clock
        self._tasks = BackgroundTasks()
        # When the last read that was answered began. None: none was, also if an earlier process reached the API.
        self._reached_at: float | None = None
        self._is_away = False

    def start(self) -> None:
        self._tasks.start(self._ask_for_ever(), "rmq:api-contact")

    async def stop(self) -> None:
        await self._tasks.stop()

    def silence_seconds(self) -> float:
        """Return the time since the beginning of the last read that was answered; infinite before the first."""
        return float("inf") if self._reached_at is None else max(0.0, self._clock() - self._reached_at)

    async def _ask_for_ever(self) -> None:
        while True:
            if len(self._tasks.running) <= MOST_AT_A_TIME:  # this task is one of them
                self._tasks.start(self._ask(), "rmq:api-contact read")
            await asyncio.sleep(PERIOD_SECONDS)

    async def _ask(self) -> None:
        began_at = self._clock()
        try:
            await self._read()
        except ApiError as error:
            if not _is_answer(error):
                self._note(error)
                return
        self._reached_at = began_at if self._reached_at is None else max(self._reached_at, began_at)
        self._note(None)

    def _note(self, error: ApiError | None) -> None:
        """Log the first failure of a silence, and its end."""
        if error is None and self._is_away:
            log.info("the Kubernetes API is reached again")
            self._is_away = False
        elif error is not None and not self._is_away and self.silence_seconds() > READ_SECONDS:
            log.warning("the Kubernetes API is not reached", error=str(error))
            self._is_away = True


def _is_answer(error: ApiError) -> bool:
    """Whether this refusal shows contact. A plane without the right elects nothing, but its silence would show no cut either.

    Without etcd an API server answers 5xx, 429, and 401 as it cannot look up the token's account.
    """
    return isinstance(error, NotFoundError) or is_forbidden(error)


def kubernetes_read(api: KubernetesApi, namespace: str | None) -> Callable[[], Coroutine[None, None, object]]:
    """Return a quorum read of the kind in which records are kept: other kinds may be in another etcd."""
    return lambda: api.get(
        BROKER_GROUP_STATES, NAME_THAT_NO_GROUP_HAS, namespace=namespace or "default", timeout_seconds=READ_SECONDS
    )
