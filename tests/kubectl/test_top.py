"""The plugin's top: all groups, worst first, drawn again as they change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kubectl.cluster import BrokerGroup, Cluster
from brokergroup_operator.kubectl.command_line import PluginError
from brokergroup_operator.kubectl.printing import show_all
from brokergroup_operator.kubectl.status import ABNORMAL
from brokergroup_operator.kubectl.top import standing_of, top_page
from tests.kubectl.bench import DEADLINE_SECONDS, STATUS, TOO_FEW, Bench

if TYPE_CHECKING:
    from collections.abc import Callable

WELL = {"Available": "True", "FailoverSafe": "True", "Ready": "True", "Reconciling": "False", "Stalled": "False"}


def conditions(**changes: str) -> list[dict[str, str]]:
    states = {**WELL, **changes}
    return [
        {"type": kind, "status": status, "reason": f"{kind}Reason", "message": f"why {kind}"}
        for kind, status in states.items()
    ]


def in_shop(name: str, **changes: str) -> dict[str, Any]:
    status = {**STATUS, "conditions": conditions(**changes)}
    return {"metadata": {"namespace": "shop", "name": name}, "spec": {"replicas": 3}, "status": status}


@pytest.mark.parametrize(
    ("changes", "word", "why"),
    [
        ({}, "well", ""),
        ({"Available": "False", "FailoverSafe": "False", "Stalled": "True"}, "no writes", "AvailableReason: why Available"),
        ({"Unfenced": "True", "FailoverSafe": "False"}, "needs a person", "UnfencedReason: why Unfenced"),
        ({"FailoverSafe": "False", "Reconciling": "True"}, "not safe to lose a member", "FailoverSafeReason: why FailoverSafe"),
        ({"FailoverSafe": "Unknown", "Reconciling": "True"}, "under way", "ReconcilingReason: why Reconciling"),
        ({"Hibernated": "True", "Available": "False"}, "hibernated", "HibernatedReason: why Hibernated"),
    ],
)  # fmt: skip
def test_a_group_stands_as_its_conditions_say(changes: dict[str, str], word: str, why: str) -> None:
    standing = standing_of(in_shop("orders", **changes))
    assert (standing.word, standing.why) == (word, why)


@pytest.mark.parametrize("kind", sorted(ABNORMAL))
def test_a_group_with_a_condition_that_is_worth_a_look_is_not_well(kind: str) -> None:
    standing = standing_of(in_shop("orders", **{kind: "True"}))
    assert (standing.word == "well", standing.why) == (False, f"{kind}Reason: why {kind}")


def test_worst_first_and_cut_to_the_terminal() -> None:
    unseen = {"metadata": {"namespace": "shop", "name": "unseen"}, "spec": {"replicas": 3}}
    groups = [
        in_shop("a-well"),
        in_shop("z-down", Available="False"),
        unseen,
        in_shop("b-busy", Paused="True"),
    ]
    summary, header, *lines = top_page(groups, everywhere=True).splitlines()
    assert summary == "4 groups, 1 no writes, 1 not looked at, 1 under way, 1 well"
    assert header.split() == ["GROUP", "STATE", "MASTER", "EPOCH", "IN-SYNC", "LAG", "LAST-FAILOVER", "TOOK", "WHY"]
    assert [line.split()[1] for line in lines] == ["shop/z-down", "shop/unseen", "shop/b-busy", "shop/a-well"]
    assert lines[0].split()[4:10] == ["2", "5", "2/3", "3.0", "MiB", lines[0].split()[9]]
    assert "41 ms   AvailableReason: why Available" in lines[0]
    cut = top_page(groups, everywhere=False, rows=5, width=20).splitlines()
    assert len(cut) == 5
    assert cut[-1] == "… and 2 that stand n"
    assert all(len(line) <= 20 for line in cut)


def test_top_shows_the_groups_of_the_namespace_once(bench: Bench) -> None:
    bench.create_group()
    bench.create_group("second", status={})
    summary, _, first, second = bench.must("top", "--once").splitlines()
    assert summary == "2 groups, 1 not looked at, 1 not safe to lose a member"
    assert first.split()[:4] == ["?", "second", "not", "looked"]
    assert f"NotEnoughCandidates: {TOO_FEW}" in second
    assert f"{bench.namespace}/orders" in bench.must("top", "--once", "-A")
    assert bench.run("top", "--once", "--context", "nowhere").code != 0


def test_a_quiet_watch_yields_without_listing_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create_group()
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    lists = 0
    ask = Cluster._ask

    def counted(self: Cluster, method: str, path: str, **others: Any) -> Any:
        nonlocal lists
        lists += 1
        return ask(self, method, path, **others)

    monkeypatch.setattr(Cluster, "_ask", counted)
    told = Cluster().follow_all(everywhere=False, quiet_seconds=1)
    assert [len(next(told)) for _ in range(3)] == [1, 1, 1]
    assert lists == 1
    bench.create_group("second")
    while len(next(told)) < 2:
        pass
    assert lists == 1
    told.close()


class EnoughError(Exception):
    """The expected text is on the screen."""


def drawn(bench: Bench, monkeypatch: pytest.MonkeyPatch, render: Callable[[list[dict[str, Any]]], str]) -> None:
    """Watches the namespace until the renderer has seen enough."""
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    failed: list[Exception] = []

    def watch() -> None:
        try:
            show_all(Cluster(), render, everywhere=False, watch=True)
        except (EnoughError, PluginError) as error:
            failed.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert isinstance(failed[0], EnoughError), failed


def test_what_changes_comes_and_goes_is_drawn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change follows once the previous one is on the screen."""
    bench.create_group()
    steps: list[tuple[set[tuple[str, int]], Callable[[], object]]] = [
        ({("orders", 5)}, lambda: bench.set_status(BrokerGroup, "orders", {"master": STATUS["master"] | {"epoch": 6}})),
        ({("orders", 6)}, lambda: bench.create_group("second")),
        ({("orders", 6), ("second", 5)}, lambda: bench.api("DELETE", bench.path(BrokerGroup, "orders"))),
        ({("second", 5)}, lambda: None),
    ]

    def render(groups: list[dict[str, Any]]) -> str:
        seen = {(one["metadata"]["name"], one.get("status", {}).get("master", {}).get("epoch", 0)) for one in groups}
        if seen == steps[0][0]:
            _, change = steps.pop(0)
            if not steps:
                raise EnoughError
            threading.Thread(target=change).start()
        return str(seen)

    drawn(bench, monkeypatch, render)


def test_a_top_whose_api_goes_away_ends_with_its_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: Cluster, *, everywhere: bool, quiet_seconds: int) -> Any:
        assert quiet_seconds > 0
        assert everywhere
        yield [in_shop("orders")]
        raise PluginError("the API went away")

    monkeypatch.setattr(Cluster, "follow_all", gone)
    said = bench.run("top", "-A")
    assert (said.code, "the API went away" in said.err) == (1, True)
