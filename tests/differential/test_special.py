"""Differences outside the answers: timers, effects at brokers, several brokers on one connection. Java beside ours."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest

from rocketmq_remoting.serialization import load_json
from tests.differential import sides
from tests.differential.comparison import JAVA_IS_STILL_SECONDS, Comparison
from tests.differential.language import Step
from tests.differential.sides import java_side, our_side
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.differential.canonical import GroupState

pytestmark = pytest.mark.real("java", "rocketmq")

Kind = TypeVar("Kind", bound=Comparison)
THREE = """
1013 id=1 check=10.0.1.1:10911;1
1003 id=1 address=10.0.1.1:10911
heartbeat id=1 address=10.0.1.1:10911 epoch=0 maxOffset=0
1013 id=2 check=10.0.1.2:10911;2
1003 id=2 address=10.0.1.2:10911
heartbeat id=2 address=10.0.1.2:10911 epoch=0 maxOffset=0
1002 id=1 designate=false
heartbeat id=1 address=10.0.1.1:10911 epoch=1 maxOffset=100
heartbeat id=2 address=10.0.1.2:10911 epoch=1 maxOffset=100
1001 master=1 epoch=1 set=1,2 setEpoch=1
"""


def steps(text: str) -> list[Step]:
    return [Step.parse(line) for line in text.split("\n") if line]


async def play(comparison: Comparison, text: str) -> None:
    for step in steps(text):
        assert await comparison.play(step), comparison.outcome.difference or comparison.outcome.ended_by


@asynccontextmanager
async def two_in_sync(folder: Path, kind: type[Kind]) -> AsyncIterator[Kind]:
    """Both controllers with the same group: 1 is master, 2 is in sync."""
    async with java_side(folder, install.ROCKETMQ_VERSION) as java, our_side() as ours:
        comparison = kind(java, ours)
        try:
            await play(comparison, THREE)
            yield comparison
        finally:
            await comparison.close()


async def test_after_a_failover_both_tell_the_survivor_the_same(tmp_path: Path) -> None:
    """1008: the same header and body; Java's is one-way, ours expects an answer."""
    async with two_in_sync(tmp_path, Comparison) as comparison:
        endpoint = comparison.endpoints.at("10.0.1.2:10911")
        endpoint.told.clear()
        await play(comparison, "close id=1")
        told = await told_by_both(endpoint)
        assert told["java"] == told["ours"]
        assert told["ours"][0] == {
            "masterAddress": endpoint.address,
            "masterBrokerId": "2",
            "masterEpoch": "2",
            "syncStateSetEpoch": "3",
        }
        assert told["ours"][1] == {"syncStateSet": [2], "syncStateSetEpoch": 3}


class SlowJava(Comparison):
    """A Java controller with a late view: until `late_seconds` after the first 1006, it answers with that first state."""

    late_seconds = 0.0
    _first: tuple[float, GroupState] | None = None

    async def state(self, side: str, name: str) -> GroupState:
        now = await super().state(side, name)
        if side != "java" or not self.late_seconds:
            return now
        clock = asyncio.get_running_loop().time()
        if self._first is None:
            self._first = clock, self.group(name).state
        return self._first[1] if clock < self._first[0] + self.late_seconds else now


async def test_a_java_controller_that_elects_late_is_waited_for(tmp_path: Path) -> None:
    async with two_in_sync(tmp_path, SlowJava) as comparison:
        comparison.late_seconds = 2 * JAVA_IS_STILL_SECONDS
        await play(comparison, "close id=1")


async def told_by_both(endpoint) -> dict[str, tuple[dict[str, str], object]]:  # type: ignore[no-untyped-def]
    """Return each controller's 1008 of the second epoch; a late one of the first is ignored."""
    deadline = asyncio.get_running_loop().time() + 15
    while True:
        told = {by: (fields, load_json(body)) for by, fields, body in endpoint.told if fields["masterEpoch"] == "2"}
        if set(told) == {"java", "ours"}:
            return told
        assert asyncio.get_running_loop().time() < deadline, f"only {sorted(told)} sent 1008"
        await asyncio.sleep(0.01)


async def test_a_connection_that_carried_two_takes_both_with_it_at_ours_only(tmp_path: Path) -> None:
    """The brokers of a container share a connection; Java notices the end of only one of them."""
    shared = "heartbeats bn 1 a"
    async with two_in_sync(tmp_path, Comparison) as comparison:
        await play(comparison, "1013 id=3 check=10.0.1.3:10911;3")
        for side in ("java", "ours"):
            for broker_id in (2, 3):
                beat = Step.of("heartbeat", id=broker_id, epoch=1, maxOffset=100)
                await comparison.ask(side, beat, purpose=shared)
        both = [await comparison.state(side, "bn") for side in ("java", "ours")]
        assert [state.alive for state in both] == [{1, 2, 3}, {1, 2, 3}]
        for side in ("java", "ours"):
            await comparison.disconnect(side, shared)
        # 2 first sent heartbeats on its own connection, to which Java binds it for good; of 1 and 3 Java notices one.
        at_ours = await comparison.until("ours", "bn", lambda state: not state.alive)
        assert at_ours.alive == frozenset()
        at_java = await comparison.until("java", "bn", lambda state: len(state.alive) == 2)
        assert at_java.alive in ({1, 2}, {2, 3})


async def test_a_broken_connection_of_a_living_master_is_no_death_at_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java elects at once; ours finds the port open, and waits for heartbeats to resume."""
    patient = replace(sides.OUR_SETTINGS, reconnect_grace_seconds=30.0)
    monkeypatch.setattr(sides, "OUR_SETTINGS", patient)
    async with two_in_sync(tmp_path, Comparison) as comparison:
        for side in ("java", "ours"):
            await comparison.disconnect(side, "heartbeats bn 1 a")
        at_java = await comparison.until("java", "bn", lambda state: state.master != 1)
        assert (at_java.master, at_java.epoch) == (2, 2)
        back = Step.of("heartbeat", id=1, epoch=1, maxOffset=100)
        await comparison.ask("ours", back, purpose="heartbeats bn 1 b")
        await comparison._ours.idle(comparison.prefix + "bn", comparison.endpoints.answers_end_of_log)
        at_ours = await comparison.state("ours", "bn")
        assert (at_ours.master, at_ours.epoch) == (1, 1)
        assert at_ours.alive == {1, 2}


@asynccontextmanager
async def a_silent_master(folder: Path, *more: str) -> AsyncIterator[Comparison]:
    """Both controllers with timers, and a group whose master is frozen: it does not answer 907."""
    quick = {"scanNotActiveBrokerInterval": 100, "scanInactiveMasterInterval": 86_400_000}
    async with (
        java_side(folder, install.ROCKETMQ_VERSION, **quick) as java,
        our_side(startup_timeout_seconds=0.0, regular_heartbeat_seconds=60.0) as ours,
    ):
        comparison = Comparison(java, ours)
        try:
            await play(comparison, "\n".join((THREE, *more)))
            for side in ("java", "ours"):
                last = Step.of("heartbeat", id=1, epoch=1, maxOffset=100, timeout=300)
                await comparison.ask(side, last)
            await comparison.endpoints.at("10.0.1.1:10911").stop()
            yield comparison
        finally:
            await comparison.close()


async def test_a_silent_master_is_replaced_by_both_when_its_timeout_has_passed(tmp_path: Path) -> None:
    """With timers: only that both replace it, with equal answers afterwards."""
    async with a_silent_master(tmp_path) as comparison:
        both = [await comparison.until(side, "bn", lambda state: state.master == 2) for side in ("java", "ours")]
        assert both[0] == both[1]
        assert both[1].epoch == 2
        assert both[1].sync_state_set == {2}


async def test_after_a_silent_master_the_most_data_wins_at_ours_only(tmp_path: Path) -> None:
    """Broker 3 is outside the set and has more than 2: the silent master may have taken it in again."""
    third = (
        "1013 id=3 check=10.0.1.3:10911;3",
        "1003 id=3 address=10.0.1.3:10911",
        "heartbeat id=3 address=10.0.1.3:10911 epoch=1 maxOffset=200",
    )
    async with a_silent_master(tmp_path, *third) as comparison:
        at_java, at_ours = [
            await comparison.until(side, "bn", lambda state: state.master != 1 and state.master is not None)
            for side in ("java", "ours")
        ]
        assert (at_java.master, at_java.epoch, set(at_java.sync_state_set)) == (2, 2, {2})
        assert (at_ours.master, at_ours.epoch, set(at_ours.sync_state_set)) == (3, 2, {3})


async def test_the_name_alone_is_the_group(tmp_path: Path) -> None:
    """Java keys heartbeats by cluster and name, and decisions by the name alone."""
    async with java_side(tmp_path, install.ROCKETMQ_VERSION) as java, our_side() as ours:
        for text, name in (
            (f"{THREE}1011 ids=2 cluster=other", "a-clean-finds-the-living-by-group"),
            (
                f"{THREE}close id=2\nheartbeat id=2 cluster=other epoch=1 maxOffset=100 conn=c",
                "a-heartbeat-finds-its-group-by-name",
            ),
        ):
            comparison = Comparison(java, ours)
            await comparison.play_all(steps(text))
            assert comparison.outcome.difference is None, comparison.outcome.difference
            assert comparison.outcome.deviations[name] == 1
