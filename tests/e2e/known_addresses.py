"""Repeatedly connects to every broker at its pod's advertised address while a story runs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.pods import place_of
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile.see.observed import pod_is_ready
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from tests.e2e.stories import ask, objects_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.house import WholeGroup

PAUSE_SECONDS = 0.2
# Fewer answered connections than this prove nothing.
FEWEST_ANSWERED = 10


@asynccontextmanager
async def reached_where_known(group: WholeGroup) -> AsyncIterator[None]:
    """Within the block every ready pod that is not terminating answers new connections at its advertised address."""
    answered, unreached = [], []

    async def look() -> None:
        while True:
            before = await _known(group)
            for pod, (uid, address) in before.items():
                try:
                    await ask(address, request(RequestCode.GET_ALL_TOPIC_CONFIG))
                    answered.append(address)
                except RemotingError as error:
                    if (await _known(group)).get(pod) == (uid, address):
                        unreached.append(f"{pod} at {address}: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    task = asyncio.create_task(look())
    try:
        yield
        assert not task.done(), task.exception()
        assert not unreached, "\n".join([*unreached[:20], group.story()])
        assert len(answered) >= FEWEST_ANSWERED
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _known(group: WholeGroup) -> dict[str, tuple[str, str]]:
    """Return uid and advertised address of each pod that is ready and not terminating."""
    known = {}
    for name, pod in (await objects_of(group, PODS)).items():
        if pod_is_ready(pod):
            place = place_of(pod)
            assert place is not None, f"{name} has its own address as the advertised one"
            known[name] = (pod["metadata"]["uid"], place.address)
    return known
