"""What `make e2e` calls ok, and that its table, the examples and the page name the same deployments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.node.authority import BLOCKS, commands_of_the_page, make
from tests.node.deployments import DEPLOYMENTS, MANIFESTS, Deployment, with_small_brokers
from tests.node.e2e import FAULTS
from tests.node.lines import Line, verdict
from tests.node.load import addresses_of
from tests.node.places import REPOSITORY
from tests.node.whole_cluster import SMALL_BROKERS

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (REPOSITORY / "docs" / "deployments.md").read_text(encoding="utf-8")
LAYOUTS = yaml.safe_load((REPOSITORY / "charts/rocketmq-cluster/files/layouts.yaml").read_text(encoding="utf-8"))
FAILS_OVER = Deployment("x", {"a": 3}, "a", faults=("kill", "delete"))
COMES_BACK = Deployment("x", {"a": 2}, "a", fails_over=False, reads_while_away=True)
MAY_LOSE = Deployment("x", {"a": 2}, "a", may_lose=True)
TAKES_ANOTHER_AUTHORITY = Deployment("x", {"a": 3}, "a", new_authority=True)


def line(deployment: Deployment, **changed: Any) -> Line:
    """A line of this deployment that is ok, but for what is changed."""
    seen: dict[str, Any] = {
        "ready_s": 20.0,
        "sent": 400,
        "consumed": 400,
        "gaps_s": dict.fromkeys(deployment.faults, 0.5),
        "deleted_s": 10.0,
        "read_while_away_s": 5.0,
        "step_s": dict.fromkeys(BLOCKS, 60.0),
    }
    return Line(deployment.name, **(seen | changed))


@pytest.mark.parametrize(
    ("deployment", "changed", "why"),
    [
        (FAILS_OVER, {}, ""),
        (COMES_BACK, {}, ""),
        (MAY_LOSE, {"lost_before_fault_s": [0.1, 4.9]}, ""),
        (
            MAY_LOSE,
            {"lost_before_fault_s": [0.1, 5.1]},
            "1 messages of the load, acknowledged up to 5.1 s before the fault",
        ),
        (MAY_LOSE, {"lost": 1}, "1 acknowledged messages were not there afterwards"),
        (FAILS_OVER, {"lost_before_fault_s": [0.1]}, "1 messages of the load"),
        (FAILS_OVER, {"lost": 1}, "1 acknowledged messages were not there afterwards"),
        (FAILS_OVER, {"ready_s": None}, "never ready"),
        (FAILS_OVER, {"sent": 0}, "no message was acknowledged"),
        (FAILS_OVER, {"gaps_s": {"kill": 0.5}}, "not measured: delete"),
        (COMES_BACK, {"read_while_away_s": None}, "not read while the master's pod was away"),
        (TAKES_ANOTHER_AUTHORITY, {}, ""),
        (TAKES_ANOTHER_AUTHORITY, {"step_s": {BLOCKS[0]: 60.0}}, f"steps not taken: {BLOCKS[1]}, {BLOCKS[2]}"),
        (FAILS_OVER, {"deleted_s": None}, "not deleted to the end"),
        (FAILS_OVER, {"left": ["default/pod/shop-0-1"]}, "1 objects are left: default/pod/shop-0-1"),
        (FAILS_OVER, {"why": ["NodeError: no"]}, "NodeError: no"),
    ],
)
def test_a_line_is_ok_only_if_everything_was_seen(deployment: Deployment, changed: dict[str, Any], why: str) -> None:
    told = verdict(deployment, line(deployment, **changed))
    assert told["ok"] == (why == "")
    assert told["lost"] == changed.get("lost", 0) + len(changed.get("lost_before_fault_s", ()))
    assert "; ".join(told["why"]).startswith(why)


def test_the_longest_gap_counts_and_only_where_another_broker_leads_it_is_a_failover() -> None:
    gaps = {"kill": 0.4, "delete": 1.5}
    failed_over, came_back = (verdict(one, line(one, gaps_s=gaps)) for one in (FAILS_OVER, COMES_BACK))
    assert (failed_over["failover_s"], failed_over["back_s"]) == (1.5, None)
    assert (came_back["failover_s"], came_back["back_s"]) == (None, 1.5)


def test_every_layout_of_the_chart_and_every_example_has_a_line() -> None:
    names = [one.name for one in DEPLOYMENTS]
    assert len(set(names)) == len(names) >= 14
    assert {*LAYOUTS, *(path.stem for path in MANIFESTS.glob("*.yaml"))} <= set(names)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: one.name)
def test_each_line_is_made_of_something_and_stands_on_the_page(deployment: Deployment) -> None:
    assert (deployment.values is None) == deployment.manifest.exists()
    assert deployment.struck in deployment.brokers
    assert set(deployment.faults) <= set(FAULTS)
    assert f"`{deployment.name}`" in PAGE


@pytest.mark.parametrize("deployment", [one for one in DEPLOYMENTS if one.values is None], ids=lambda one: one.name)
def test_each_example_can_be_found_and_deleted_whole_by_its_label(deployment: Deployment) -> None:
    found = list(yaml.safe_load_all(deployment.manifest.read_text(encoding="utf-8")))
    assert {one["metadata"]["labels"]["app.kubernetes.io/part-of"] for one in found} == {deployment.name}
    assert all(one["metadata"]["name"].startswith(deployment.name) for one in found)
    components = {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for one in found
        if one["kind"] == "StatefulSet"
    }
    assert {"nameserver", "broker"} <= components


def test_brokers_are_small_and_what_a_layout_says_of_them_stays() -> None:
    values = {"layout": "2m-2s-sync", "brokerGroups": {"count": 1, "template": {"durability": "Available"}}}
    made = with_small_brokers(values)
    assert made["brokerGroups"] == {"count": 1, "template": {**SMALL_BROKERS, "durability": "Available"}}
    assert (made["layout"], [one["name"] for one in made["topics"]]) == ("2m-2s-sync", ["payments", "orders"])


def test_a_name_server_s_numbers_without_quotes_are_read() -> None:
    body = b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",2:"10.0.0.2:10911"},"brokerName":"broker-a"}}}'
    assert addresses_of(body) == {"broker-a": {"0": "10.0.0.1:10911", "2": "10.0.0.2:10911"}}
    assert addresses_of(None) == {}


def test_the_page_s_commands_find_their_files(tmp_path: Path) -> None:
    there = {one.name for one in (make(tmp_path).folder).iterdir()}
    for block in BLOCKS:
        commands = commands_of_the_page(block)
        there |= set(re.findall(r" > (\S+)", commands))
        used = set(re.findall(r"--from-file=\S+?=(\S+)", commands))
        assert used, block
        assert used <= there, block
