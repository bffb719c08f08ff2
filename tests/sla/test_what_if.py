"""Observed failures in other setups, each worked out by hand."""

from __future__ import annotations

import pytest

from metric_names import GROUP_WRITABLE, SYNC_STATE_SET_SIZE
from sla_reports.measures.summary import Agreement, Evidence, summarise
from sla_reports.reduction.runs import Run, by_series
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Window
from sla_reports.what_if import Loss, Setup, losses_of, replay

ORDERS = GroupKey("default", "c", "orders")
DAY = Window(0, 86_400_000)
HOUR_MS = 3_600_000

# The master is silently lost for an hour; half an hour later its successor crashes for ten minutes. A slave is away at 10 h.
LOSSES = {
    ORDERS: [
        Loss(HOUR_MS, 2 * HOUR_MS, master=True, detection_ms=3000, switch_ms=500, silent=True),
        Loss(HOUR_MS * 3 // 2, HOUR_MS * 3 // 2 + 600_000, master=True, detection_ms=10, switch_ms=490),
        Loss(10 * HOUR_MS, 10 * HOUR_MS + 60_000),
    ]
}


@pytest.mark.parametrize(
    ("setup", "down_ms", "one_copy_ms", "stranded"),
    [
        # One replica: down as long as it is away; a slave it has not is not lost.
        (Setup(1), HOUR_MS, 24 * HOUR_MS, 2),
        # Two: the second loss finds nobody, until the one that is back first is back; one copy as long as one is away.
        (Setup(2), 3500 + 600_000, HOUR_MS + 60_000, 1),
        (Setup(3), 3500 + 500, 600_000, 0),
        # Strict on three: writes are refused while two are away.
        (Setup(3, min_in_sync=2), 3500 + 600_000, 600_000, 0),
        (Setup(5, min_in_sync=3), 3500 + 500, 0, 0),
        # Fast: nobody is waited for, so what is acknowledged has one copy at any time.
        (Setup(3, master_alone=True), 3500 + 500, 24 * HOUR_MS, 0),
        (Setup(3, silence_timeout_ms=10_000), 10_500 + 500, 600_000, 0),
    ],
)
def test_other_setups(setup: Setup, down_ms: int, one_copy_ms: int, stranded: int) -> None:
    outcome = replay(LOSSES, DAY, setup)
    assert (outcome.down_ms, outcome.one_copy_ms, outcome.stranded) == (down_ms, one_copy_ms, stranded)
    assert outcome.availability == pytest.approx(1 - down_ms / DAY.length_ms)
    assert outcome.cost == setup.replicas


def test_a_zone_takes_all_that_lie_in_it() -> None:
    losses = {ORDERS: [Loss(0, HOUR_MS, master=True, switch_ms=500, whole_zone=True)]}
    together, apart = (replay(losses, DAY, Setup(3, zones=zones)) for zones in (1, 3))
    assert (together.down_ms, together.stranded) == (HOUR_MS, 1)
    assert (apart.down_ms, apart.stranded) == (500, 0)


def test_a_setup_nobody_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_in_sync 3: expected 1 to replicas \(2\)"):
        Setup(2, min_in_sync=3)


def _runs(metric: str, *points: tuple[int, float]) -> list[Run]:
    """A gauge scraped every 10 s with a value from each of the instants on."""
    series = series_text(metric, {"namespace": "default", "cluster": "c", "broker_group": "orders"})
    ends = [at_ms for at_ms, _ in points[1:]] + [DAY.end_ms]
    return [
        Run(series, value, start_ms, end_ms - 10_000, 1) for (start_ms, value), end_ms in zip(points, ends, strict=True)
    ]


def test_losses_are_taken_from_what_was_observed() -> None:
    size = _runs(
        SYNC_STATE_SET_SIZE, (0, 3.0), (HOUR_MS, 2.0), (2 * HOUR_MS, 3.0), (10 * HOUR_MS, 1.0), (11 * HOUR_MS, 3.0)
    )
    fleet = Fleet(by_series([*_runs(GROUP_WRITABLE, (0, 1.0)), *size]), gap_ms=25_000)
    steps = {"detected": 0.0, "committed": 300.0, "roleChanged": 500.0, "inSync": 600.0}
    log = [LoggedIncident("o/1", ORDERS, HOUR_MS + 3000, trigger="silence", detection_ms=3000.0, steps_ms=steps)]
    summary = summarise(Agreement(DAY, 0.999), Evidence(fleet, log))
    losses = losses_of(summary, fleet, SYNC_STATE_SET_SIZE, replicas=3)
    assert losses == {
        ORDERS: [
            Loss(HOUR_MS, 2 * HOUR_MS, master=True, detection_ms=3000.0, switch_ms=600.0, silent=True),
            Loss(10 * HOUR_MS, 11 * HOUR_MS, members=2),
        ]
    }
    observed = replay(losses, DAY, Setup(3))
    assert observed.down_ms == summary.groups[0].availability.down_ms == 3600
    assert observed.one_copy_ms == summary.groups[0].exposure.one_copy_ms == HOUR_MS
