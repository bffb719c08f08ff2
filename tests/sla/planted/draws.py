"""Drawn histories of a few groups, with sources that agree, contradict each other, are late, doubled, reordered or missing.

Outages are planted first. Then each source reports them, correctly or not, so that at least one correct source can know every
outage: the report's figures must add up, and its bounds must contain the planted outages.

    python -m tests.sla.planted.draws [--draws 10000] [--first 0]

Without Spark: the kernel that makes runs from a lake's day makes them here, from two days that arrive in the wrong order.
The last line is one JSON object; the exit code is 1 if a draw has a violation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from metric_names import GROUP_WRITABLE, MEMBER_PLACE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.reduction.runs import Intervals, day_pieces, runs_in, stitched
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.incidents import Source
from sla_reports.states.logged import LoggedIncident, once
from sla_reports.states.spans import State, Window, by_series, gap_limit_ms
from tests.sla.histories import Sample, batches_of

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_MS = 15_000
LENGTH_MS = 240 * STEP_MS
CAUSES = ("crash", "oom", "disk", "partition", "unknown")
STEP_NAMES = ("fenced", "committed", "roleChanged")


@dataclass
class Drawn:
    """Outages of each group, in which it really accepted no writes, and all sources about them."""

    outages: dict[GroupKey, list[Window]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    log: list[LoggedIncident] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)
    midnight_ms: int = 0

    @cached_property
    def fleet(self) -> Fleet:
        """Return the samples in any order, as in an export; a part of them is a separate day, and comes late."""
        intervals = Intervals(other_ms=STEP_MS)
        days = [
            pa.Table.from_batches(list(day_pieces(partial(batches_of, part), intervals)))
            for part in (
                [one for one in self.samples if one[1] >= self.midnight_ms],
                [one for one in self.samples if one[1] < self.midnight_ms],
            )
            if part
        ]
        runs = runs_in(stitched(pa.concat_tables(days)))
        return Fleet(by_series(runs), gap_ms=gap_limit_ms(STEP_MS))

    def summary(self, window: Window) -> Summary:
        """Return the report's figures."""
        log = once(self.log)
        return summarise(Agreement(window, 0.999), Evidence(self.fleet, log, amendments=self.amendments))


def draw(seed: int) -> Drawn:
    """Draw a history; the seed determines it."""
    source, drawn = random.Random(seed), Drawn()
    for number in range(source.randint(1, 3)):
        key = GroupKey("default", f"c{number % 2}", f"g{number}")
        drawn.outages[key] = list(_outages(source))
        _tell(drawn, key, source)
    if source.random() < 0.2:
        start_ms = source.randrange(LENGTH_MS)
        state = source.choice([None, State.UP, State.DOWN, State.UNKNOWN])
        end_ms = start_ms + source.randrange(1, LENGTH_MS // 2)
        drawn.amendments.append(Amendment("default/c0/*", start_ms, end_ms, state, "drawn", "test"))
    source.shuffle(drawn.samples)
    source.shuffle(drawn.log)
    drawn.midnight_ms = source.randrange(LENGTH_MS)
    return drawn


def violations(seed: int) -> Iterator[str]:
    """Return violations of one draw's report: wrong sums, bounds without the truth, an outage in two periods."""
    drawn = draw(seed)
    whole = Window(0, LENGTH_MS)
    summary = drawn.summary(whole)
    yield from (f"{seed}: {fault}" for fault in reconcile_totals(summary).faults)
    if not drawn.amendments:
        for figures in summary.groups:
            told = figures.availability
            down_ms = sum(one.end_ms - one.start_ms for one in drawn.outages[figures.group])
            low_ms, high_ms = told.down_ms, told.total_ms - told.up_ms
            # An edge known only from scrapes is off by up to a scrape interval, also that of two pods that disagree.
            disputes = [one for one in figures.held if one.state is State.DISPUTED and one.length_ms > STEP_MS]
            slack_ms = told.error_ms - told.disputed_ms + 2 * STEP_MS * (len(figures.incidents) + len(disputes))
            if not low_ms - slack_ms <= down_ms <= high_ms + slack_ms:
                yield f"{seed}: {figures.group}: down {low_ms} to {high_ms} ms (+- {slack_ms}), planted {down_ms} ms"
    edge_ms = random.Random(seed).randrange(1, LENGTH_MS)
    parts = [drawn.summary(window) for window in (Window(0, edge_ms), Window(edge_ms, LENGTH_MS))]
    for part in parts:
        yield from (f"{seed}: part of the period: {fault}" for fault in reconcile_totals(part).faults)
    logged = [
        one.logged.id
        for part in parts
        for figures in part.groups
        for one in figures.incidents
        if one.logged is not None
    ]
    if len(logged) != len(set(logged)):
        yield f"{seed}: outages in two periods: {sorted(logged)}"
    # An outage that only the gauge shows did not begin with the period, but at its first sample.
    cut = [one.id for one in parts[1].incidents if one.source is Source.GAUGE and one.start_ms == edge_ms]
    if cut:
        yield f"{seed}: outages that were cut at {edge_ms}: {cut}"


def _outages(source: random.Random) -> Iterator[Window]:
    at_ms = source.randrange(2 * STEP_MS, LENGTH_MS // 3)
    while at_ms < LENGTH_MS - 30 * STEP_MS:
        length_ms = source.choice([source.randrange(100, STEP_MS), source.randrange(4 * STEP_MS, 20 * STEP_MS)])
        yield Window(at_ms, at_ms + length_ms)
        at_ms += length_ms + source.randrange(12 * STEP_MS, 80 * STEP_MS)


def _tell(drawn: Drawn, key: GroupKey, source: random.Random) -> None:
    outages = drawn.outages[key]
    labels = {"namespace": key.namespace, "cluster": key.cluster, "broker_group": key.broker_group}
    if source.random() < 0.2:
        labels["exported_namespace"], labels["namespace"] = labels["namespace"], "monitoring"
    has_counter = source.random() < 0.5
    copies = source.choice([1, 1, 2])
    stuck = source.randrange(copies) if copies == 2 and source.random() < 0.4 else None
    silences = [_silence(source) for _ in range(copies)]
    for number, one in enumerate(outages):
        # With one copy stuck at up, the log is the only correct source for an outage in the other one's silence.
        hidden = stuck is not None and not has_counter and _overlap(one, silences[1 - stuck])
        is_long = one.end_ms - one.start_ms >= 4 * STEP_MS
        if (is_long or has_counter) and not hidden and source.random() < 0.3:
            continue
        drawn.log += _lines(key, number, one, source, may_lie=is_long and not has_counter and not hidden)
    # Two Prometheus servers with a label that no option names; if one is stuck it would be a separate group.
    way = stuck is None and copies == 2 and source.random() < 0.5
    for copy in range(copies):
        told = [] if copy == stuck else outages
        pod = {**labels, "server": str(copy)} if way else {**labels, "instance": f"pod-{source.randrange(9)}-{copy}"}
        drawn.samples += _gauge(pod, told, silences[copy], source)
        if has_counter and (way or copy == 0):
            drawn.samples += _counter({**labels, "server": str(copy)} if way else labels, outages)
    place = series_text(MEMBER_PLACE, {**labels, "zone": f"z{source.randrange(2)}"})
    drawn.samples += [(place, at_ms, 1.0) for at_ms in range(0, LENGTH_MS, STEP_MS)]


def _lines(
    key: GroupKey, number: int, one: Window, source: random.Random, *, may_lie: bool
) -> Iterator[LoggedIncident]:
    """Return the log's lines of an outage: exact, too short, by another clock; once or twice."""
    start_ms, end_ms = one.start_ms, one.end_ms
    kind = source.random() if may_lie else 1.0
    if kind < 0.2:
        end_ms = start_ms + (end_ms - start_ms) // source.randrange(2, 20)
    elif kind < 0.3:
        shift_ms = source.choice([-1, 1]) * 12 * 60_000
        start_ms, end_ms = start_ms + shift_ms, end_ms + shift_ms
    detection_ms = source.randrange(0, max(1, end_ms - start_ms))
    rest_ms = end_ms - start_ms - detection_ms
    steps = {name: rest_ms * share / 4 for share, name in enumerate(STEP_NAMES, start=1)}
    line = LoggedIncident(
        f"{key}/{number}", key, start_ms + detection_ms, trigger="silence", cause=source.choice(CAUSES),
        detection_ms=float(detection_ms), steps_ms={"detected": 0.0, **steps, "inSync": float(rest_ms)},
        facts={"zone": "z0"} if source.random() < 0.5 else {},
    )  # fmt: skip
    yield line
    if source.random() < 0.2:
        yield line


def _silence(source: random.Random) -> Window:
    """Return spans in which a pod is not scraped; most pods have none."""
    start_ms = source.randrange(LENGTH_MS) if source.random() < 0.3 else LENGTH_MS
    return Window(start_ms, start_ms + 20 * STEP_MS)


def _overlap(one: Window, other: Window) -> bool:
    # The scrape before a silence holds for as long as a lost scrape allows.
    return one.start_ms < other.end_ms + 3 * STEP_MS and other.start_ms - 3 * STEP_MS < one.end_ms


def _gauge(labels: dict[str, str], outages: list[Window], silence: Window, source: random.Random) -> Iterator[Sample]:
    """Return scrapes: some lost, some doubled, some with two contradicting samples."""
    name, phase_ms = series_text(GROUP_WRITABLE, labels), source.randrange(STEP_MS)
    for at_ms in range(phase_ms, LENGTH_MS, STEP_MS):
        if silence.start_ms <= at_ms < silence.end_ms or source.random() < 0.005:
            continue
        value = 0.0 if any(one.start_ms <= at_ms < one.end_ms for one in outages) else 1.0
        yield name, at_ms, value
        luck = source.random()
        if luck < 0.02:
            yield name, at_ms, value
        elif luck < 0.03:
            yield name, at_ms, 1.0 - value


def _counter(labels: dict[str, str], outages: list[Window]) -> Iterator[Sample]:
    """Return the counter, which rises when an outage ends; none of its scrapes is lost."""
    name = series_text(UNAVAILABLE_SECONDS_TOTAL, labels)
    for at_ms in range(0, LENGTH_MS, STEP_MS):
        yield name, at_ms, sum((one.end_ms - one.start_ms) / 1000 for one in outages if one.end_ms <= at_ms)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    found: list[str] = []
    for seed in range(options.first, options.first + options.draws):
        found += violations(seed)
        if (seed + 1) % 1000 == 0:
            print(f"up to seed {seed}: {len(found)} violations", file=sys.stderr, flush=True)
    for text in found[:20]:
        print(text, file=sys.stderr)
    print(json.dumps({"draws": options.draws, "violations": len(found)}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
