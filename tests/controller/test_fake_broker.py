"""The scripted broker is as silent as a real process where the other tests rest on its silence."""

import asyncio

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from tests.controller.conftest import StartPlane
from tests.support.fake_broker import FakeGroup, eventually


async def test_who_is_killed_while_frozen_never_answers(start_plane: StartPlane, group: FakeGroup) -> None:
    """Its last answer told the plane that a master which was just fenced is still there."""
    plane = await start_plane()
    group.planes = [plane.address]
    broker = await group.broker(minimum=1)
    broker.freeze()
    client = RemotingClient()
    asking = asyncio.create_task(
        client.invoke(broker.address, request(RequestCode.GET_BROKER_CONFIG), timeout_seconds=10.0)
    )
    await eventually(lambda: broker.waiting, what="the request to be there")
    await broker.kill()
    with pytest.raises(RemotingError):
        await asking
    await client.close()
