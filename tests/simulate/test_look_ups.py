"""The API fails or delays reads of Secrets, nodes and pods by address: no failover waits for them (virtual time)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.kubernetes_directory import LOOK_UP_DEADLINE_SECONDS
from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.kube.resources import BROKER_GROUPS
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from tests.simulate.api import PlaneApi
from tests.simulate.kubelet import NAMESPACE
from tests.simulate.planes import RESTART_SECONDS
from tests.simulate.test_simulate import master_of, play
from tests.support.memory_api import MemoryApi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulate.world import World

UNREADABLE = 5
WITHIN_SECONDS = 30.0


@pytest.fixture(params=["answered 500", "not answered in time"])
def look_ups_fail(request: pytest.FixtureRequest) -> Iterator[mock.Mock]:
    """Let each GET of a Secret, a node or the pods at an address fail, and count them; the rest of the API works."""
    whole, asked = PlaneApi._request, mock.Mock()

    async def fail(self: PlaneApi, method: str, path: str, *, timeout_seconds: float, **options: Any) -> dict[str, Any]:
        by_address = "fieldSelector" in (options.get("parameters") or {})
        if method != "GET" or not (by_address or "/secrets/" in path or "/nodes/" in path):
            return await whole(self, method, path, timeout_seconds=timeout_seconds, **options)
        asked("pods by address" if by_address else path)
        if request.param == "answered 500":
            raise ApiUnavailableError(f"GET {path}: 500", status=500)
        await asyncio.sleep(timeout_seconds)
        raise ApiUnavailableError(f"GET {path}: no answer within {timeout_seconds} s")

    with mock.patch.object(PlaneApi, "_request", fail):
        yield asked


async def want_secrets(world: World) -> None:
    """Create other groups that name Secrets."""
    for number in range(UNREADABLE):
        group = {
            "apiVersion": names.API_VERSION,
            "kind": names.BROKER_GROUP_KIND,
            "metadata": {"name": f"a-{number}", "namespace": NAMESPACE},
            "spec": {
                "implementation": "Java",
                "nameServers": ["ns:9876"],
                "security": {"credentialsSecretRef": {"name": f"unreadable-{number}"}},
            },
        }
        await MemoryApi(world.server).create(BROKER_GROUPS, group)


async def strangers_ask(world: World) -> None:
    """Send each plane requests from hosts without a pod, all the time: each makes the plane look up the host."""
    client = RemotingClient()
    fields = {"clusterName": "cl", "brokerName": "orders"}
    question = request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ext_fields=fields)

    async def ask(plane: str) -> None:
        while True:
            with contextlib.suppress(RemotingError):
                await client.invoke(plane, question, timeout_seconds=0.3)
            await asyncio.sleep(0.05)

    try:
        await asyncio.gather(*(ask(plane) for plane in world.plane_addresses))
    finally:
        await client.close()


async def seconds_to_the_next_master(world: World) -> float:
    """Return the seconds from now to the next master."""
    epoch, began = world.oracle.records[-1]["masterEpoch"], world.loop.time()
    while world.oracle.records[-1]["masterEpoch"] == epoch:
        assert world.loop.time() < began + WITHIN_SECONDS, "no election in time"
        await asyncio.sleep(0.01)
    return world.loop.time() - began


def test_a_master_that_dies_while_look_ups_fail_is_replaced_at_once(look_ups_fail: mock.Mock) -> None:
    async def story(world: World) -> None:
        await want_secrets(world)
        for number in range(3):
            world.loop.hosts[f"stranger-{number}"] = f"10.9.0.{number + 1}"
            world.loop.spawn(f"stranger-{number}/1", strangers_ask(world))
        await asyncio.sleep(10.0)
        asked = Counter(call.args[0] for call in look_ups_fail.call_args_list)
        assert len(asked) > UNREADABLE
        assert asked["pods by address"] > 3 * len(world.planes)
        world.kill(master_of(world).node)
        assert await seconds_to_the_next_master(world) < 0.5

    play(story)


def test_planes_that_start_while_look_ups_fail_replace_a_dead_master_as_soon_as_ever(look_ups_fail: mock.Mock) -> None:
    """The master dies together with the planes: their restart waits for one deadline at most, however many Secrets there are."""

    async def story(world: World) -> None:
        await want_secrets(world)
        for node in (*(plane.node for plane in world.planes), master_of(world).node):
            world.kill(node)
        # A second for the restart, plus one deadline if a Secret gets no answer.
        assert await seconds_to_the_next_master(world) < RESTART_SECONDS + LOOK_UP_DEADLINE_SECONDS + 0.5
        assert look_ups_fail.called

    play(story)
