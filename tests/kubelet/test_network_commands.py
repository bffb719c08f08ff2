"""The commands with which a node makes its pods' network: what each wrote and how it ended, whatever the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from kube_sandbox.kubelet import network
from kube_sandbox.kubelet.network import PodNetworkError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@pytest.fixture
def ended_before_it_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command has ended before its input could be written, as on a busy machine."""
    create = asyncio.create_subprocess_exec

    async def create_and_wait(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*arguments, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_and_wait)


@LOOPS
@pytest.mark.usefixtures("ended_before_it_is_fed")
@pytest.mark.parametrize("stdin", ["", "link add bgk0 type bridge"])
def test_a_command_that_ends_without_reading_has_its_output(
    new_loop: Callable[[], asyncio.AbstractEventLoop], stdin: str
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(network._run("echo", "[]", stdin=stdin)) == "[]\n"


@LOOPS
@pytest.mark.usefixtures("ended_before_it_is_fed")
def test_a_command_that_fails_is_told_with_what_it_was_given(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(PodNetworkError, match="link del bgk0"):
        runner.run(network._run("false", stdin="link del bgk0"))


@LOOPS
def test_a_batch_arrives_whole(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    batch = "\n".join(f"link del pod-{number}" for number in range(100))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(network._run("cat", stdin=batch)) == batch
