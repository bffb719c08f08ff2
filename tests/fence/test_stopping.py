"""A broker that is to be stopped while its pod stays: the gate before its start, and the fence, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.fence import deletion
from brokergroup_operator.fence.processes import BrokerProcesses
from brokergroup_operator.fence.settings import (
    GRACE_VARIABLE,
    PROCESS_VARIABLE,
    STOP_SECONDS,
    FenceSettingsError,
    stop_seconds,
)
from brokergroup_operator.fence.stopping import LOOK_SECONDS, StopOrder
from brokergroup_operator.reconcile.render import stop_gate
from tests.fence.test_process import Controller, Group, fence_environment, fence_of, said
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

BROKER_PORT = 10911
JAVA_FENCE = "brokergroup_operator.fence"
# A broker that reports its start, and by what it was started.
BROKER = ("sh", "-c", f'echo "started by ${PROCESS_VARIABLE}"; exec sleep 1000')
DEAF = ("sh", "-c", 'trap "" TERM; echo "started"; while :; do sleep 0.1; done')


class Container:
    """A broker's container without a kubelet: one start after the other, behind the gate."""

    def __init__(self, folder: Path) -> None:
        self.uid = str(uuid.uuid4())
        self.order_file = folder / "stopped"
        self.order_file.write_bytes(b"")
        self.environment = {
            **os.environ, "POD_UID": self.uid, "BROKERGROUP_CONTAINER": "broker", "STOP_ORDER_FILE": str(self.order_file),
        }  # fmt: skip
        self.started: list[asyncio.subprocess.Process] = []

    def order(self, *, stop: bool) -> None:
        self.order_file.write_text("true" if stop else "", encoding="ascii")

    async def start(self, *command: str, gate: bool = True) -> asyncio.subprocess.Process:
        arguments = stop_gate.behind_gate(command) if gate else command
        process = await asyncio.create_subprocess_exec(*arguments, env=self.environment, stdout=asyncio.subprocess.PIPE)
        self.started.append(process)
        return process

    def brokers(self) -> list[int]:
        """Return the processes that are the broker, by its marks."""
        found = BrokerProcesses(self.uid, started_only=True)
        found.search(0.0)
        return found.pids

    async def close(self) -> None:
        for process in self.started:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    made = Container(tmp_path)
    yield made
    await made.close()


async def test_the_gate_starts_no_broker_while_the_order_stands_and_becomes_the_broker_after(
    container: Container,
) -> None:
    container.order(stop=True)
    waiting = await container.start(*BROKER)
    await eventually(lambda: waiting.pid in all_of(container), "the container's process to be there")
    assert not container.brokers()
    container.order(stop=False)
    assert await said(waiting) == "started by broker"
    assert container.brokers() == [waiting.pid]


def all_of(container: Container) -> list[int]:
    """Return every process of the container, a waiting one too."""
    found = BrokerProcesses(container.uid)
    found.search(0.0)
    return found.pids


async def test_a_waiting_container_ends_at_once_by_sigterm(container: Container) -> None:
    container.order(stop=True)
    waiting = await container.start(*BROKER)
    await eventually(lambda: waiting.pid in all_of(container), "the container's process to be there")
    waiting.terminate()
    assert await waiting.wait() == -signal.SIGTERM


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    """It answers that broker 2 is master; the container's broker is 1."""
    made = Controller(Group(tmp_path).hosts, BROKER_PORT)
    made.master = 2
    await made.server.start("127.0.0.1", 0)
    yield made
    await made.server.stop()


async def fence_beside(
    container: Container, controller: Controller, module: str, **more: str
) -> asyncio.subprocess.Process:
    """Start the fence of this container's pod, and wait until it runs. `more`: of its environment."""
    address = f"{controller.hosts[0]}:{BROKER_PORT}"
    settings = fence_environment(address, f"127.0.0.1:{controller.server.port}") | {"FENCE_LOCAL_ADDRESS": address}
    fence = await fence_of(module, container.environment | settings | more)
    container.started.append(fence)
    return fence


async def test_a_fence_that_starts_beside_a_master_leaves_it_alone_while_the_order_stands(
    container: Container, controller: Controller
) -> None:
    """A failover made it master after its order; then its fence was started again, and knows no role at first."""
    controller.master = 1
    broker = await container.start(*BROKER)
    assert await said(broker) == "started by broker"
    container.order(stop=True)
    await fence_beside(container, controller, JAVA_FENCE)
    await eventually(lambda: controller.answered > 5, "the fence to have looked for the order, and asked five times")
    assert broker.returncode is None


@pytest.mark.parametrize("module", [deletion.__name__, JAVA_FENCE])
async def test_a_broker_is_stopped_and_nothing_else_in_its_container(
    container: Container, controller: Controller, module: str
) -> None:
    """Both kinds of fence. A person's shell and a probe carry the container's variables too."""
    broker, shell = await container.start(*BROKER), await container.start("sleep", "1000", gate=False)
    assert await said(broker) == "started by broker"
    fence = await fence_beside(container, controller, module)
    container.order(stop=True)
    assert await broker.wait() == -signal.SIGTERM
    assert "stopping the broker by the operator's order" in await said(fence)

    # The kubelet starts the container again, and the order stands.
    again = await container.start(*BROKER)
    await eventually(lambda: again.pid in all_of(container), "the container's process to be there")
    assert not container.brokers()
    assert shell.returncode is None
    container.order(stop=False)
    assert await said(again) == "started by broker"
    assert shell.returncode is None
    # The order holds again for the next process.
    container.order(stop=True)
    assert await again.wait() == -signal.SIGTERM


async def test_a_broker_that_does_not_end_in_time_is_killed(container: Container) -> None:
    broker, order = await container.start(*DEAF), StopOrder(container.order_file, container.uid, STOP_SECONDS)
    assert await said(broker) == "started"
    container.order(stop=True)
    assert not order.look(0.0), "SIGTERM is not its death: the fence keeps what it knows, and kills an isolated master"
    assert not order.look(STOP_SECONDS - LOOK_SECONDS), "its time is not over"
    assert broker.returncode is None
    assert order.look(STOP_SECONDS + LOOK_SECONDS)
    assert await broker.wait() == -signal.SIGKILL


@pytest.mark.parametrize("kind", [deletion.__name__, JAVA_FENCE])
async def test_a_broker_has_the_time_that_its_pod_gives_it(
    container: Container, controller: Controller, kind: str
) -> None:
    """`terminationGracePeriodSeconds`: the fence of either kind gives it what its environment says."""
    broker = await container.start(*DEAF)
    assert await said(broker) == "started"
    fence = await fence_beside(container, controller, kind, **{GRACE_VARIABLE: "1"})
    container.order(stop=True)
    assert await broker.wait() == -signal.SIGKILL
    assert "stopping the broker" in await said(fence)
    assert "did not end" in await said(fence)


@pytest.mark.parametrize("text", ["0", "soon", "-5", "1.5", "99999"])
def test_a_time_that_is_none_is_named(text: str) -> None:
    with pytest.raises(FenceSettingsError, match=f"{GRACE_VARIABLE} is '{text}', expected"):
        stop_seconds({GRACE_VARIABLE: text})
    assert stop_seconds({}) == 60.0, "a pod of an earlier release says nothing"


@pytest.mark.parametrize("grace", [1.0, 60.0, 100.0])
async def test_a_broker_that_a_hung_disk_keeps_alive_is_killed_once_a_minute(
    container: Container, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """Each attempt waits 2 s for its end, in which the fence answers no other fence: also where its pod gave it a second."""
    attempts: list[float] = []

    def in_vain(_: BrokerProcesses, now: float) -> list[int]:
        attempts.append(now)
        return []

    monkeypatch.setattr(BrokerProcesses, "kill", in_vain)
    broker, order = await container.start(*DEAF), StopOrder(container.order_file, container.uid, grace)
    assert await said(broker) == "started"
    container.order(stop=True)
    for second in range(int(grace) + 130):
        order.look(second * LOOK_SECONDS)
    assert attempts == [grace, grace + 60.0, grace + 120.0]


async def test_a_master_is_left_alone_until_it_is_none(container: Container) -> None:
    """Between the operator's look and its order a failover may have made it master."""
    broker, order = await container.start(*BROKER), StopOrder(container.order_file, container.uid, STOP_SECONDS)
    assert await said(broker) == "started by broker"
    container.order(stop=True)
    order.look(0.0, may_stop=False)
    assert broker.returncode is None
    order.look(LOOK_SECONDS, may_stop=True)
    assert await broker.wait() == -signal.SIGTERM


async def test_a_pod_of_an_earlier_release_has_no_order_and_is_left_alone(container: Container) -> None:
    broker = await container.start(*BROKER)
    assert await said(broker) == "started by broker"
    assert not StopOrder(None, container.uid, STOP_SECONDS).look(0.0)
    assert not StopOrder(container.order_file.with_name("missing"), container.uid, STOP_SECONDS).look(0.0)
    assert broker.returncode is None
