"""What if: the observed failures once more, with other replica counts, zones, durability and timeouts.

The same masters and slaves are lost at the same times, for as long as the SyncStateSet's size shows them away. By rule (`_lose`) a
lost master is replaced after detection + switch, as observed, if another member is there; else the group is down until the first
one is back. A loss that took a whole zone takes all members in it (member i is in zone i modulo `zones`). With fewer than
`min_in_sync` members, writes are refused. It is no forecast: more replicas would also fail more often.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

from metric_names import SYNC_STATE_SET_SIZE
from sla_reports.measures.recovery import stages_of
from sla_reports.output.html_elements import counted, duration, percent
from sla_reports.output.written import WrittenReport
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.incidents import Incident, events
from sla_reports.states.spans import Span, State, Window, at_least, clip, overlay, total_ms

_SILENT = ("silence",)
_HEAD = (
    "setup", "availability", "change", "down", "change", "one copy", "change", "no candidate", "pods and disks", "change",
)  # fmt: skip
# The operator's profiles (`spec.durability`): how many must have a message, and whether the master waits for them.
DURABILITIES: Mapping[str, tuple[int, bool]] = {"Strict": (2, False), "Available": (1, False), "Fast": (1, True)}


@dataclass(frozen=True, slots=True)
class Setup:
    """A way to run a group. `min_in_sync` 1 is the durability Available, 2 is Strict; no timeout: as observed.

    `master_alone`: the master acknowledges without waiting for a slave, which is Fast. What is acknowledged has one copy then.
    `own_replicas`: the replicas of single groups, as observed; all others have `replicas`.
    """

    replicas: int
    min_in_sync: int = 1
    zones: int = 1
    silence_timeout_ms: int | None = None
    master_alone: bool = False
    own_replicas: Mapping[GroupKey, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not 1 <= self.min_in_sync <= self.replicas:
            raise ValueError(f"min_in_sync {self.min_in_sync}: expected 1 to replicas ({self.replicas})")
        if self.zones < 1:
            raise ValueError(f"zones {self.zones}: expected 1 or more")

    @property
    def least_replicas(self) -> int:
        return min([self.replicas, *self.own_replicas.values()])

    def replicas_of(self, group: GroupKey) -> int:
        """Return how many replicas the group has."""
        return self.own_replicas.get(group, self.replicas)


@dataclass(frozen=True, slots=True)
class Loss:
    """A member that was away from `start_ms` to `end_ms`: the master (after `detection_ms`, taking `switch_ms`), or a slave."""

    start_ms: int
    end_ms: int
    master: bool = False
    detection_ms: float = 0.0
    switch_ms: float = 0.0
    silent: bool = False
    whole_zone: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a setup would have come to. `stranded`: losses without a member that could be elected. `cost`: disks and pods."""

    setup: Setup
    total_ms: int
    down_ms: int
    one_copy_ms: int
    stranded: int
    cost: int

    @property
    def availability(self) -> float:
        return max(0.0, 1 - self.down_ms / self.total_ms) if self.total_ms else 0.0


@dataclass
class _Group:
    """A group while it is replayed: until when each member is away, and all times at which one was."""

    away_until_ms: list[int]
    away: list[Span] = field(default_factory=list)
    down: list[Span] = field(default_factory=list)
    master: int = 0
    stranded: int = 0


def replay(losses: Mapping[GroupKey, Sequence[Loss]], window: Window, setup: Setup) -> Outcome:
    """Replay all groups' losses in one setup."""
    down_ms = one_copy_ms = stranded = cost = 0
    for group in sorted(losses):
        replicas = setup.replicas_of(group)
        # No group of one replica is Strict, whatever the others are.
        min_in_sync = min(setup.min_in_sync, replicas)
        played = _Group([window.start_ms] * replicas)
        for loss in sorted(losses[group], key=lambda one: (one.start_ms, not one.master)):
            _lose(played, loss, setup)
        present = _present(played.away, window, replicas)
        refused = [Span(*edges, State.DOWN) for edges, count in present if count < min_in_sync]
        line = overlay([Span(window.start_ms, window.end_ms, State.UP)], [*played.down, *refused])
        down_ms += total_ms(line, State.DOWN)
        fewest = replicas if setup.master_alone else 1
        one_copy_ms += sum(end_ms - start_ms for (start_ms, end_ms), count in present if count <= fewest)
        stranded += played.stranded
        cost += replicas
    return Outcome(setup, window.length_ms * len(losses), down_ms, one_copy_ms, stranded, cost)


def losses_among(
    incidents: Mapping[GroupKey, Sequence[Incident]], window: Window, fleet: Fleet, size_metric: str, *, observed: Setup
) -> dict[GroupKey, list[Loss]]:
    """Derive each group's losses of members from a report's incidents and the gauge of the SyncStateSet's size."""
    unplanned = [one for own in incidents.values() for one in own if not one.planned]
    last = [stages_of(one.logged).get("firstSuccess") for one in unplanned if one.logged is not None]
    settle_ms = statistics.median([one for one in last if one is not None] or [0.0])
    of_a_zone = {
        one.id
        for event in events(unplanned)
        if len(event.groups) > 1 and "zone" in dict(event.common)
        for one in event.incidents
    }
    return {
        group: _of_group(group, own, fleet, size_metric, window, observed.replicas_of(group), settle_ms, of_a_zone)
        for group, own in incidents.items()
    }


def _of_group(
    group: GroupKey, incidents: Sequence[Incident], fleet: Fleet, size_metric: str, window: Window, replicas: int, settle_ms: float,
    of_a_zone: set[str],
) -> list[Loss]:  # fmt: skip
    # A level is a member: the first is away while the size is below `replicas`, the second while it is one less, and so on.
    levels = [
        [span for span in fleet.spans(size_metric, group, window, at_least(count)) if span.state is State.DOWN]
        for count in range(replicas, 1, -1)
    ]
    slack_ms = fleet.gap_ms(size_metric, group)
    found: list[Loss] = []
    of_masters: set[int] = set()
    for incident in (one for one in incidents if not one.planned):
        until_ms = incident.start_ms + incident.length_ms(window.end_ms)
        begun = [_begun(level, incident.start_ms - slack_ms, until_ms + slack_ms) for level in levels]
        # The first level is the master's; a zone takes its other members by rule (`_lose`).
        own = [one for one in begun if one][: None if incident.id in of_a_zone else 1]
        of_masters.update(id(span) for level in own for span in level)
        back_ms = max([until_ms, *(span.end_ms for level in own for span in level)])
        found.append(_loss_of_master(incident, until_ms, back_ms, settle_ms, of_a_zone))
    slaves = (span for level in levels for span in level if id(span) not in of_masters)
    found += [Loss(span.start_ms, span.end_ms) for span in slaves]
    return sorted(found, key=lambda one: one.start_ms)


def _begun(level: Sequence[Span], from_ms: int, until_ms: int) -> list[Span]:
    return [span for span in level if from_ms <= span.start_ms <= until_ms]


def _loss_of_master(incident: Incident, until_ms: int, back_ms: int, settle_ms: float, of_a_zone: set[str]) -> Loss:
    """The time until enough members are in sync follows from the members present; the other stages keep their observed length."""
    if incident.logged is None:
        # The group took writes again at its end; the lost member may have come back later.
        switch_ms = float(until_ms - incident.start_ms)
        return Loss(incident.start_ms, back_ms, master=True, switch_ms=switch_ms)
    stages = stages_of(incident.logged)
    switch_ms = sum(stages.get(stage, 0.0) for stage in ("elect", "roleChange", "index", "route"))
    return Loss(
        incident.start_ms, back_ms, master=True, detection_ms=stages.get("detect", 0.0),
        switch_ms=switch_ms + min(settle_ms, stages.get("firstSuccess", 0.0)),
        silent=incident.logged.trigger in _SILENT, whole_zone=incident.id in of_a_zone,
    )  # fmt: skip


def _lose(played: _Group, loss: Loss, setup: Setup) -> None:
    there = [i for i, until_ms in enumerate(played.away_until_ms) if until_ms <= loss.start_ms]
    if loss.master:
        hit = {played.master}
        if loss.whole_zone:
            hit |= {i for i in there if i % setup.zones == played.master % setup.zones}
    else:
        hit = set([i for i in there if i != played.master][:1])
    for member in hit:
        played.away_until_ms[member] = max(played.away_until_ms[member], loss.end_ms)
        played.away.append(Span(loss.start_ms, loss.end_ms, State.DOWN))
    if not loss.master:
        return
    left = [i for i in there if i not in hit]
    detection_ms = loss.detection_ms
    if loss.silent and setup.silence_timeout_ms is not None:
        detection_ms = float(setup.silence_timeout_ms)
    after_ms = round(detection_ms + loss.switch_ms)
    if left:
        played.master = left[0]
        end_ms = loss.start_ms + after_ms
    else:
        played.master = min(range(len(played.away_until_ms)), key=lambda i: (played.away_until_ms[i], i))
        end_ms = max(played.away_until_ms[played.master], loss.start_ms + after_ms)
        played.stranded += 1
    if end_ms > loss.start_ms:
        played.down.append(Span(loss.start_ms, end_ms, State.DOWN))


def _present(away: Sequence[Span], window: Window, replicas: int) -> list[tuple[tuple[int, int], int]]:
    """How many members were there between each two changes."""
    inside = [piece for span in away for piece in clip([span], window)]
    edges = sorted({window.start_ms, window.end_ms, *(edge for s in inside for edge in (s.start_ms, s.end_ms))})
    return [
        ((low, high), max(0, replicas - sum(span.start_ms <= low < span.end_ms for span in inside)))
        for low, high in pairwise(edges)
    ]


def durabilities_of(names: Sequence[str], min_in_sync: Sequence[int]) -> list[tuple[int, bool]]:
    """Profiles by name, or numbers of members that must have a message; `Available` where nothing is said. Raises ValueError."""
    if names and min_in_sync:
        raise ValueError("durability: names minInSync already; expected one of the two")
    if unknown := [name for name in names if name not in DURABILITIES]:
        raise ValueError(f"durability: {unknown[0]!r}; expected one of {', '.join(DURABILITIES)}")
    return [DURABILITIES[name] for name in names] or [(number, False) for number in min_in_sync or [1]]


def setups_of(
    replicas: Sequence[int],
    durabilities: Sequence[tuple[int, bool]],
    zones: Sequence[int],
    timeouts_ms: Sequence[int | None],
) -> list[Setup]:
    """Every combination that a group can have. Raises ValueError where there is none."""
    found = [
        Setup(count, minimum, zones=spread, silence_timeout_ms=timeout_ms, master_alone=alone)
        for count, (minimum, alone), spread, timeout_ms in product(replicas, durabilities, zones, timeouts_ms)
        if minimum <= count
    ]
    if not found:
        least = min(minimum for minimum, _ in durabilities)
        raise ValueError(f"min_in_sync {least}: expected 1 to replicas ({max(replicas)})")
    return found


def replicas_seen(fleet: Fleet, groups: Iterable[GroupKey]) -> dict[GroupKey, int]:
    """Return each group's greatest SyncStateSet in the samples, without the groups that had none."""
    greatest = {
        group: max(
            (
                run.value
                for one in fleet.series_of(SYNC_STATE_SET_SIZE, group)
                for run in one.runs
                if run.value is not None
            ),
            default=0.0,
        )
        for group in groups
    }
    return {group: round(value) for group, value in greatest.items() if value >= 1}


def outcomes_of(
    report: WrittenReport, fleet: Fleet, observed: Setup, others: Sequence[Setup]
) -> tuple[Outcome, list[Outcome]]:
    """Replay the observed setup, and the others. Their availability is of the time that the report knows, as the report's own."""
    losses = losses_among(report.incidents, report.window, fleet, SYNC_STATE_SET_SIZE, observed=observed)
    known_ms = _known_ms(report)
    first, *rest = (replace(replay(losses, report.window, one), total_ms=known_ms) for one in (observed, *others))
    return first, rest


def _known_ms(report: WrittenReport) -> int:
    """Unknown and excluded time, and time without the group, would pass for time in which writes were taken."""
    return sum(one["write"]["upMs"] + one["write"]["downMs"] for one in report.summary["groups"])


def measured_down_ms(report: WrittenReport) -> int:
    """Return the down time of all groups in the report."""
    return sum(one["write"]["downMs"] for one in report.summary["groups"])


def _calibrated(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> tuple[Outcome, list[Outcome]]:
    """With the down time that the model leaves out added to each: the observed setup then shows what was measured."""
    left_out_ms = measured_ms - observed.down_ms
    first, *rest = (replace(one, down_ms=max(0, one.down_ms + left_out_ms)) for one in (observed, *others))
    return first, rest


def as_table(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> str:
    """Return a table for a person: the observed setup first, as measured (`measured_ms`), then what the model leaves out."""
    first, rest = _calibrated(observed, others, measured_ms)
    rows = [_HEAD, _row(first, first, "observed: ")]
    rows += [_row(one, first) for one in rest]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *_notes(observed, others, measured_ms)])


def _notes(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> Iterator[str]:
    left_out_ms = measured_ms - observed.down_ms
    yield f"observed down time: {duration(measured_ms)}; the same setup replayed: {duration(observed.down_ms)}"
    if left_out_ms > 0:
        yield (
            f"The model leaves out {duration(left_out_ms)}: planned switchovers, and waiting that another setup might not"
            " have. It is added to every line as it is, for what it would be elsewhere is not known."
        )
    elif left_out_ms:
        yield f"The model has {duration(-left_out_ms)} more than was observed. That is taken off every line."
    for one in others:
        if one.setup != observed.setup and (one.down_ms, one.one_copy_ms) == (observed.down_ms, observed.one_copy_ms):
            yield (
                f"{setup_words(one.setup)}: as {setup_words(observed.setup)}, for no two of its members were away at once;"
                " the model knows only failures that were seen, and another number of replicas would have had others."
            )


def as_document(observed: Outcome, others: Sequence[Outcome], measured_ms: int) -> dict[str, Any]:
    """Return the comparison for a program: down times calibrated, with the replayed ones and what the model leaves out."""
    first, rest = _calibrated(observed, others, measured_ms)
    return {
        "observed": _document(first),
        "replayedDownMs": observed.down_ms,
        "leftOutMs": measured_ms - observed.down_ms,
        "others": [
            {
                **_document(one),
                "change": {
                    "availability": round(one.availability - first.availability, 9),
                    "downMs": one.down_ms - first.down_ms,
                    "oneCopyMs": one.one_copy_ms - first.one_copy_ms,
                    "cost": one.cost - first.cost,
                },
            }
            for one in rest
        ],
    }


def setup_words(setup: Setup) -> str:
    """Format a setup in a few words."""
    timeout = "" if setup.silence_timeout_ms is None else f", silence timeout {duration(setup.silence_timeout_ms)}"
    alone = ", acknowledged by the master alone" if setup.master_alone else ""
    least = "" if setup.least_replicas == setup.replicas else f"{setup.least_replicas} to "
    there = f"{least}{counted(setup.replicas, 'replica')}, minInSync {setup.min_in_sync}{alone}, {counted(setup.zones, 'zone')}"
    return there + timeout


def _row(one: Outcome, observed: Outcome, name: str = "") -> tuple[str, ...]:
    points = (one.availability - observed.availability) * 100
    changes = [
        f"{points:+.4f}", _more(one.down_ms - observed.down_ms), _more(one.one_copy_ms - observed.one_copy_ms),
        f"{one.cost - observed.cost:+d}",
    ]  # fmt: skip
    of_availability, of_down, of_one_copy, of_cost = ["" for _ in changes] if name else changes
    return (
        name + setup_words(one.setup), percent(one.availability), of_availability, duration(one.down_ms), of_down,
        duration(one.one_copy_ms), of_one_copy, str(one.stranded), str(one.cost), of_cost,
    )  # fmt: skip


def _more(change_ms: int) -> str:
    return f"{'+' if change_ms > 0 else ''}{duration(change_ms)}"


def _document(one: Outcome) -> Mapping[str, Any]:
    return {
        "replicas": one.setup.replicas, "leastReplicas": one.setup.least_replicas,
        "minInSync": one.setup.min_in_sync, "zones": one.setup.zones,
        "masterAlone": one.setup.master_alone, "silenceTimeoutMs": one.setup.silence_timeout_ms,
        "availability": round(one.availability, 9),
        "downMs": one.down_ms, "oneCopyMs": one.one_copy_ms, "stranded": one.stranded, "cost": one.cost,
    }  # fmt: skip
