"""spec.monitoring.canary of a whole group: a client's view of a failover beside the operator's."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.upkeep.recovery_watch import QUEUES, TOPIC
from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.demo.routes import RouteServer
from tests.e2e.house import settled_group

if TYPE_CHECKING:
    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def test_an_incident_has_the_first_write_that_a_client_saw(house: House) -> None:
    routes = RouteServer()
    await routes.start("127.0.0.1", 0)
    operator = await house.start_operator()
    async with settled_group(
        house, "canary", nameServers=[routes.address], monitoring={"canary": {"enabled": True}}
    ) as group:
        struck_ms = time.time_ns() // 1_000_000
        await group.lose_master()
        await group.until(house.incidents, "the incident is told")
        [incident] = house.incidents()
        steps = incident["stepsMilliseconds"]
        assert incident["outcome"] == "completed"
        assert {"roleChanged", "indexCaughtUp", "routeVisible", "inSync", "firstAck"} <= steps.keys()
        assert steps["firstAck"] >= steps["committed"]
        # Each message has its send time; acknowledged ones are in the new master's log.
        address = group.seen.master_address()
        assert address is not None
        sent_ms = sorted(int(key) for key in await read_keys(address, TOPIC, QUEUES))
        acknowledged_ms = dt.datetime.fromisoformat(incident["startedAt"]).timestamp() * 1000 + steps["firstAck"]
        assert sent_ms[0] < struck_ms, "it was sent before the fault too"
        assert any(struck_ms < one <= acknowledged_ms for one in sent_ms), (struck_ms, acknowledged_ms, sent_ms)
        await group.verify()
        await house.kill_operator(operator)
    await routes.stop()
