"""Where masters were: time by zone, node, version and tenant adds up to the groups' time, and a loss is where the lost one was."""

from __future__ import annotations

from metric_names import GROUP_WRITABLE, MEMBER_PLACE
from sla_reports.measures.availability import availability_by_place
from sla_reports.measures.summary import Agreement, Evidence, GroupFigures, summarise
from sla_reports.output.html_incidents import causes
from sla_reports.reduction.runs import Run, by_series
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet, GroupKey, divided, facts_at, stays_of
from sla_reports.states.spans import Span, State, Window

GROUP = {"namespace": "default", "cluster": "c", "broker_group": "orders"}
ORDERS = GroupKey("default", "c", "orders")
WINDOW = Window(0, 1_000_000)


def place(broker_id: int, runs: list[tuple[float, int, int]], **facts: str) -> list[Run]:
    series = series_text(MEMBER_PLACE, {**GROUP, "broker_id": str(broker_id), **facts})
    return [Run(series, value, start, end, (end - start) // 10_000 + 1) for value, start, end in runs]


def writable(*runs: tuple[float, int, int]) -> list[Run]:
    series = series_text(GROUP_WRITABLE, GROUP)
    return [Run(series, value, start, end, (end - start) // 10_000 + 1) for value, start, end in runs]


# Broker 1 in zone a is master and seen for the last time at 390 s; from 420 s on it is broker 2 in zone b, from 700 s on that
# one runs on another node.
RUNS = [
    *place(1, [(1.0, 0, 390_000), (0.0, 420_000, 1_000_000)], zone="a", node="n1", tenant="shop"),
    *place(2, [(0.0, 0, 410_000), (1.0, 420_000, 690_000)], zone="b", node="n2", tenant="shop"),
    *place(2, [(1.0, 700_000, 1_000_000)], zone="b", node="n3", tenant="shop"),
    *writable((1.0, 0, 390_000), (0.0, 400_000, 410_000), (1.0, 420_000, 1_000_000)),
]
FLEET = Fleet(by_series(RUNS), gap_ms=25_000)


def test_a_group_without_a_master_is_where_the_lost_one_was() -> None:
    stays = stays_of(FLEET, ORDERS, WINDOW)
    assert [(one.start_ms, one.end_ms, one.facts.get("node")) for one in stays] == [
        (0, 420_000, "n1"), (420_000, 700_000, "n2"), (700_000, 1_000_000, "n3"),
    ]  # fmt: skip
    assert facts_at(stays, 420_000)["node"] == "n1"
    assert facts_at(stays, 420_001) == {"zone": "b", "node": "n2", "tenant": "shop"}
    assert facts_at(stays, 0)["node"] == "n1"


def test_before_the_first_master_was_seen_nobody_knows() -> None:
    late = Fleet(by_series(place(1, [(1.0, 600_000, 1_000_000)], zone="a")), gap_ms=25_000)
    stays = stays_of(late, ORDERS, WINDOW)
    assert [(one.start_ms, dict(one.facts)) for one in stays] == [(0, {}), (600_000, {"zone": "a"})]
    assert divided([Span(0, 1_000_000, State.UP)], stays, "zone") == {
        "": [Span(0, 600_000, State.UP)], "a": [Span(600_000, 1_000_000, State.UP)],
    }  # fmt: skip
    [nowhere] = stays_of(Fleet({}, gap_ms=25_000), ORDERS, WINDOW)
    assert nowhere.facts == {}


def _figures() -> GroupFigures:
    [figures] = summarise(Agreement(WINDOW, 0.99), Evidence(FLEET, ())).groups
    return figures


def test_the_time_of_a_group_is_divided_and_none_of_it_is_lost() -> None:
    figures = _figures()
    whole = figures.availability
    for fact, told in figures.by_place.items():
        assert sum(one.total_ms for one in told.values()) == whole.total_ms, fact
        assert sum(one.down_ms for one in told.values()) == whole.down_ms, fact
    assert {value: one.down_ms for value, one in figures.by_place["zone"].items()} == {"a": 20_000, "b": 0}
    assert {value: one.up_ms for value, one in figures.by_place["node"].items()} == {
        "n1": 400_000, "n2": 280_000, "n3": 300_000,
    }  # fmt: skip
    assert list(figures.by_place["tenant"]) == ["shop"]
    assert list(figures.by_place["rack"]) == [""]


def test_what_only_the_gauge_saw_happened_to_the_master_of_that_time() -> None:
    [incident] = _figures().incidents
    assert incident.facts == {"zone": "a", "node": "n1", "tenant": "shop"}


def test_groups_are_added() -> None:
    one = _figures().by_place["zone"]
    both = availability_by_place([one, one, {"": one["a"]}])
    assert {value: told.down_ms for value, told in both.items()} == {"": 20_000, "a": 40_000, "b": 0}


def test_the_page_tells_what_samples_tell_and_no_more() -> None:
    page = causes(summarise(Agreement(WINDOW, 0.99), Evidence(FLEET, ())))
    assert "zone of the master" in page
    assert "n3" in page
    assert "rack of the master" not in page
