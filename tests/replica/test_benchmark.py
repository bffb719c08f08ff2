"""The benchmark of the replica: it counts what was acknowledged, notices what is missing, and reports the worst run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.replica_groups import TOPIC, Figures, Group, cost_of_waiting, judge_targets, produce

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replica.support import FakeController, Lab, RunningReplica


async def loaded_group(one: RunningReplica, controller: FakeController, root: Path) -> Group:
    """A group of the benchmark around a replica of the test, after a moment of its load."""
    group = Group("python", "", controller=controller, root=root, patience_seconds=0.5)
    result = await produce(one.address, seconds=0.2, body_bytes=100, connections=2, window=16)
    assert set(result.codes) == {0}
    assert len(result.latencies_seconds) == result.codes[0]
    assert (result.percentile_ms(0.5) or 0) <= (result.percentile_ms(0.99) or 0)
    group.acknowledged = result.codes[0]
    return group


async def test_every_answer_is_a_message_and_a_missing_one_is_noticed(lab: Lab, tmp_path: Path) -> None:
    one = await lab.master()
    group = await loaded_group(one, lab.controller, tmp_path / "group")
    try:
        assert len(await lab.client.pull_all(one, topic=TOPIC)) == group.acknowledged
        assert await group.lost_messages() == 0
        group.acknowledged += 3
        assert await group.lost_messages() == 3
    finally:
        await group.client.close()


def test_the_worst_is_the_slowest_and_refused_sends_are_counted() -> None:
    figures = Figures()
    for rate, wait in ((10.0, 1.0), (30.0, 3.0), (20.0, 2.0)):
        figures.add("sends_per_second", rate, more_is_better=True)
        figures.add("p99_ms", wait)
    figures.note_refused({0: 100, 2: 7})
    figures.note_refused({0: 100, 2: 1, 12: 1})
    summary = figures.summary()
    assert summary["sends_per_second"] == {"median": 20.0, "worst": 10.0, "best": 30.0}
    assert summary["p99_ms"] == {"median": 2.0, "worst": 3.0, "best": 1.0}
    assert summary["refused"] == {"2": 8, "12": 1}
    assert summary["runs"] == 3


def test_what_waiting_for_the_slaves_costs_is_shown_run_by_run() -> None:
    synchronous, asynchronous = Figures(), Figures()
    for waited, alone in ((9.0, 10.0), (40.0, 50.0), (30.0, 20.0)):
        synchronous.add("sends_per_second", waited, more_is_better=True)
        asynchronous.add("sends_per_second", alone, more_is_better=True)
    assert cost_of_waiting(synchronous, asynchronous) == {"median": 0.9, "worst": 0.8, "best": 1.5}


def test_a_target_is_judged_by_what_was_seen_and_by_what_one_core_does() -> None:
    figures = Figures()
    figures.add("sends_per_second", 14_000, more_is_better=True)
    figures.add("sends_per_processor_second", 40_000, more_is_better=True)
    assert judge_targets({"1_replicas": figures}) == {
        "sends_per_second_1_replica": {
            "wanted": 15_000,
            "as_measured": 14_000,
            "met_as_measured": False,
            "per_processor_second_of_the_busiest_broker": 40_000,
            "met_on_one_core": True,
        }
    }
