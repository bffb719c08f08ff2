"""spec.updateStrategy.windows: when a window is open, what waits for it and what does not, and what the group says meanwhile."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.update_fields import UpdateWindow
from brokergroup_operator.reconcile.decide.windows import opening
from brokergroup_operator.reconcile.evaluate import UNSETTLED_SECONDS
from brokergroup_operator.reconcile.other_groups import Turn, turn_of
from brokergroup_operator.reconcile.plan import Verb, WriteStatus
from brokergroup_operator.reconcile.tell.events import transition_notes
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

BERLIN: Final = {"start": "02:30", "durationMinutes": 240, "timeZone": "Europe/Berlin"}
WEEKEND: Final = {"days": ["Sat", "Sun"], "start": "22:00", "durationMinutes": 240}
NIGHTS: Final = {"start": "23:00", "durationMinutes": 120}
SATURDAY: Final = WEEKEND | {"days": ["Sat"]}
EARLY_MONDAY: Final = BERLIN | {"days": ["Mon"], "start": "00:30"}
APIA: Final = {"days": ["Sat"], "start": "00:00", "durationMinutes": 60, "timeZone": "Pacific/Apia"}
MARS: Final = NIGHTS | {"timeZone": "Mars/Olympus"}


def at(windows: list[dict[str, Any]], now: str) -> str:
    """`open`, or when the next one opens, in UTC as `now`."""
    found = opening(msgspec.convert(windows, list[UpdateWindow]), dt.datetime.fromisoformat(f"{now}Z"))
    if found.is_open:
        return "open"
    return f"{found.opens_at:%Y-%m-%dT%H:%M}" if found.opens_at is not None else "never"


# In UTC. 2026-11-21 is a Saturday. In Berlin the clocks skip 02:00 to 03:00 on 2026-03-29, and have it twice on 2026-10-25.
TIMES: list[tuple[str, list[dict[str, Any]], str, str]] = [
    ("no window: any time", [], "2026-11-21T12:00", "open"),
    ("every day, before", [NIGHTS], "2026-11-21T22:59:59", "2026-11-21T23:00"),
    ("every day, its first second", [NIGHTS], "2026-11-21T23:00", "open"),
    ("every day, the day after it began", [NIGHTS], "2026-11-22T00:59:59", "open"),
    ("every day, over", [NIGHTS], "2026-11-22T01:00", "2026-11-22T23:00"),
    ("a day of the week, days before", [WEEKEND], "2026-11-23T12:00", "2026-11-28T22:00"),
    ("a day of the week, began on it", [WEEKEND], "2026-11-23T01:59:59", "open"),
    ("a day of the week, over until next week", [WEEKEND], "2026-11-23T02:00", "2026-11-28T22:00"),
    ("one day a week, in the week's last second", [SATURDAY], "2026-11-22T02:00", "2026-11-28T22:00"),
    ("a whole day", [{"days": ["Sat"], "start": "00:00", "durationMinutes": 1440}], "2026-11-21T23:59:59", "open"),
    ("a whole day, every day", [{"start": "12:00", "durationMinutes": 1440}], "2026-11-21T11:59:59", "open"),
    ("the earliest of several", [WEEKEND, NIGHTS], "2026-11-23T12:00", "2026-11-23T23:00"),
    ("open by any of several", [WEEKEND, NIGHTS], "2026-11-23T23:30", "open"),
    ("its day is the time zone's", [EARLY_MONDAY], "2026-11-22T23:00", "2026-11-22T23:30"),
    ("winter", [BERLIN], "2026-11-21T12:00", "2026-11-22T01:30"),
    ("summer", [BERLIN], "2026-07-21T12:00", "2026-07-22T00:30"),
    ("its start is skipped: as much later", [BERLIN], "2026-03-29T00:00", "2026-03-29T01:30"),
    ("its start is skipped: for its whole length", [BERLIN], "2026-03-29T05:29:59", "open"),
    ("its start is skipped: and no longer", [BERLIN], "2026-03-29T05:30", "2026-03-30T00:30"),
    ("its start comes twice: at the first", [BERLIN], "2026-10-25T00:00", "2026-10-25T00:30"),
    ("its start comes twice: still the first", [BERLIN], "2026-10-25T01:30", "open"),
    ("its start comes twice: once", [BERLIN | {"durationMinutes": 30}], "2026-10-25T01:30", "2026-10-26T01:30"),
    ("the clocks are set back meanwhile", [BERLIN | {"start": "01:00"}], "2026-10-25T02:59:59", "open"),
    ("the clocks are set back meanwhile: over", [BERLIN | {"start": "01:00"}], "2026-10-25T03:00", "2026-10-26T00:00"),
    ("a zone that skipped its Friday", [APIA], "2011-12-30T09:59:59", "2011-12-30T10:00"),
    ("an offset of half an hour", [NIGHTS | {"timeZone": "Asia/Kolkata"}], "2026-11-21T17:00", "2026-11-21T17:30"),
    ("a zone that is none", [MARS], "2026-11-21T23:00", "never"),
    ("a zone that is none beside another", [MARS, BERLIN], "2026-11-21T23:00", "2026-11-22T01:30"),
]  # fmt: skip


@pytest.mark.parametrize(("windows", "now", "expected"), [one[1:] for one in TIMES], ids=[one[0] for one in TIMES])
def test_when_a_window_is_open(windows: list[dict[str, Any]], now: str, expected: str) -> None:
    assert at(windows, now) == expected


def test_each_day_of_two_years_has_its_window_once_and_whole() -> None:
    """On the days of both changes of the clocks too: no minute is lost, and none counts twice."""
    windows = msgspec.convert([BERLIN], list[UpdateWindow])
    now, end, minutes = dt.datetime(2025, 12, 31, 12, tzinfo=dt.UTC), dt.datetime(2027, 12, 31, 12, tzinfo=dt.UTC), 0
    while now < end:
        minutes += opening(windows, now).is_open
        now += dt.timedelta(minutes=10)
    assert minutes == 730 * 240 // 10


CLOSED: Final = {"updateStrategy": {"windows": [BERLIN]}}
# b.NOW is midnight: Saturday 01:00 in Berlin.
INSIDE: Final = "2026-11-21T02:00:00Z"
OPENS: Final = "2026-11-21T01:30:00Z (Sat 02:30 Europe/Berlin)"
PREFERRED: Final = {"failover": {"preferredMaster": 3}, **CLOSED}
RESTARTING: Final = {"updateStrategy": {"masterUpdate": "Restart", "windows": [BERLIN]}}
BARRED: Final = {"failover": {"priorities": [{"brokerId": 1, "priority": 0}]}, **CLOSED}
DRAINED: Final = {
    "node_1": c.node("node-1", unschedulable=True),
    "node_2": c.node("node-2"),
    "node_3": c.node("node-3"),
}


def closed(**spec: Any) -> Observed:
    return c.settled(**CLOSED, **spec)


def restarted_at(seen: Observed, value: str) -> Observed:
    return c.with_metadata(seen, annotations={"kubectl.kubernetes.io/restartedAt": value})


def copying(seen: Observed, *in_sync: int) -> Observed:
    return c.seen_with(seen, b.record(in_sync=in_sync))


# Before b.NOW: a second short of the patience with a member that catches up, and all of it.
JUST_NOW, LONG_AGO = "2026-11-20T23:50:01Z", "2026-11-20T23:50:00Z"


def lacking(seen: Observed, since: str = LONG_AGO) -> Observed:
    """Its status says since when not every member replicates."""
    conditions = list((seen.group_object.get("status") or {}).get("conditions") or [])
    conditions.append({"type": "ReplicationHealthy", "status": "False", "reason": "-", "lastTransitionTime": since})
    return c.with_status(seen, {"conditions": conditions})


def not_ready_since(seen: Observed, since: str, *names_of_pods: str) -> Observed:
    """Their brokers serve; another container is not ready."""

    def fall(pod: dict[str, Any]) -> None:
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]

    return c.with_pods(seen, fall, *names_of_pods)


def sidecar_without_image(seen: Observed, name: str) -> Observed:
    def fail(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"].append(
            {"name": "shipper", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
        )

    return c.with_pods(not_ready_since(seen, JUST_NOW, name), fail, name)


BROKEN: Final = c.live(c.not_ready(copying(c.outdated(closed()), 1, 3), "orders-2"), 1, 3)
# What is seen, what is done outside the window, and what within.
WAITING: list[tuple[str, Observed, list[str], list[str]]] = [
    ("an outdated group", c.outdated(closed()), [], ["replace orders-2"]),
    ("a member that copies the log", copying(c.outdated(closed()), 1, 3), [], ["replace orders-2"]),
    ("the switchover before the master's restart", c.outdated(closed(), "orders-1"), [], ["switch orders-1"]),
    ("half rolled", c.outdated(closed(), "orders-1", "orders-3"), [], ["replace orders-3"]),
    ("the master is restarted as it is", c.outdated(c.settled(**RESTARTING), "orders-1"), [], ["replace orders-1"]),
    ("a group of one", c.outdated(closed(replicas=1)), [], ["replace orders-1"]),
    ("a cold key", c.wishing(closed(), config={"maxMessageSize": "1"}, **CLOSED), [], ["replace orders-2"]),
    ("resources", c.wishing(closed(), resources={"limits": {"memory": "4Gi"}}, **CLOSED), [], ["replace orders-2"]),
    ("one that has just fallen behind", lacking(copying(c.outdated(closed()), 1, 3), JUST_NOW), [], ["replace orders-2"]),
    ("all are in sync, whatever the status said", lacking(c.outdated(closed())), [], ["replace orders-2"]),
    ("one that may get ready yet", not_ready_since(c.outdated(closed()), JUST_NOW, "orders-2"), [], ["replace orders-2"]),
    ("mastership goes to the preferred member", c.settled(**PREFERRED), [], ["switch orders-1 to 3"]),
    ("a master of priority 0", c.settled(**BARRED), [], ["switch orders-1 to 2"]),
]  # fmt: skip
NOT_WAITING: list[tuple[str, Observed, list[str]]] = [
    ("a broken member", BROKEN, ["replace orders-2"]),
    ("one that has not been ready for long", not_ready_since(c.outdated(closed()), LONG_AGO, "orders-2"), ["replace orders-2"]),
    ("and no other", not_ready_since(c.outdated(closed()), LONG_AGO, "orders-1", "orders-3"), ["replace orders-3"]),
    ("the master too", not_ready_since(c.outdated(closed()), LONG_AGO, "orders-1"), ["switch orders-1"]),
    ("one whose sidecar has no image", sidecar_without_image(c.outdated(closed()), "orders-3"), ["replace orders-3"]),
    ("one that its configuration keeps out of the set", lacking(copying(c.outdated(closed()), 1, 3)), ["replace orders-2"]),
    ("as it does two", lacking(copying(c.outdated(closed()), 1)), ["replace orders-2", "replace orders-3"]),
    ("a Restart of all", c.running(closed(), "Restart", brokerIds=[]), ["replace orders-2"]),
    ("a Restart of one of an outdated group", c.running(c.outdated(closed()), "Restart", brokerIds=[3]), ["replace orders-3"]),
    ("a Restart of its master", c.running(c.outdated(closed()), "Restart", brokerIds=[1]), ["switch orders-1"]),
    ("kubectl rollout restart", restarted_at(closed(), "now"), ["replace orders-2"]),
    ("a drained node", c.on_nodes(closed(), **DRAINED), ["switch orders-1 to 2"]),
    ("a member that leaves", c.marked(c.wishing(closed(), replicas=2, **CLOSED), "orders-3"), ["stop orders-3"]),
    ("a Decommission of the master", c.running(closed(), "Decommission", brokerId=1), ["switch orders-1"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "before", "within"), [one[1:] for one in WAITING], ids=[one[0] for one in WAITING])
def test_what_waits_for_the_window(seen: Observed, before: list[str], within: list[str]) -> None:
    assert c.steps(seen) == before
    assert c.steps(replace(seen, now=INSIDE)) == within


@pytest.mark.parametrize(("seen", "expected"), [one[1:] for one in NOT_WAITING], ids=[one[0] for one in NOT_WAITING])
def test_what_does_not_wait(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


def test_a_lost_pod_and_a_first_one_do_not_wait() -> None:
    assert "apply Pod orders-2" in c.lines_of(c.run(c.without_pods(c.outdated(closed()), "orders-2")))
    new = c.seen_with(c.without_pods(closed(), *closed().pods), b.reserved(1, 2, 3))
    assert [line for line in c.lines_of(c.run(new)) if line.startswith("apply Pod ")] == [
        f"apply Pod orders-{one}" for one in (1, 2, 3)
    ]


def test_what_waits_is_said_with_its_time_and_with_what_does_not_wait() -> None:
    found = c.conditions(c.outdated(closed(), "orders-1"))
    told = (
        f"Outdated: orders-1 (PodChanged): outside spec.updateStrategy.windows until {OPENS};"
        " kubectl brokergroup restart orders 1 does not wait"
    )
    assert [found["UpToDate"][key] for key in ("status", "reason", "message")] == ["False", "OutsideWindow", told]
    # It may be for days: not in progress to kstatus, and Ready.
    assert [found["Reconciling"][key] for key in ("status", "reason", "message")] == ["False", "OutsideWindow", told]
    assert (found["Ready"]["status"], found["Stalled"]["status"]) == ("True", "False")
    assert c.status_of(c.outdated(closed()))["phase"] == "Ready"


def test_the_command_names_what_is_left_of_a_half_done_update() -> None:
    """Without broker ids it would restart the members that are done as well, and move the master for it."""
    told = "; kubectl brokergroup restart orders {} does not wait"
    assert c.message(c.outdated(closed(), "orders-1"), "UpToDate").endswith(told.format("1"))
    assert c.message(c.outdated(closed(), "orders-1", "orders-3"), "UpToDate").endswith(told.format("1 3"))
    assert c.message(c.outdated(closed()), "UpToDate").endswith("; kubectl brokergroup restart orders does not wait")


def test_an_update_that_waits_for_its_window_is_not_stuck() -> None:
    """A member is copying a lost disk's log for hours, and is up to date: no update is under way that it could hold up."""

    def age(pod: dict[str, Any]) -> None:
        pod["metadata"]["creationTimestamp"] = "2026-11-20T20:00:00Z"

    waits = c.with_pods(copying(c.outdated(closed(), "orders-1", "orders-3"), 1, 3), age, "orders-2")
    assert c.condition(waits, "Stalled") == ("False", "NothingStalled")
    for stuck in (c.rolling(waits), c.wishing(waits)):
        assert c.condition(stuck, "Stalled") == ("True", "RolloutStuck")


def test_a_master_that_is_to_move_says_so() -> None:
    told = c.message(c.settled(**PREFERRED), "Reconciling")
    assert told == (
        f"Mastership is to move, broker 3 is preferred: outside spec.updateStrategy.windows until {OPENS};"
        " kubectl brokergroup switchover orders does not wait"
    )
    assert c.condition(c.settled(**PREFERRED), "UpToDate") == ("True", "AllUpToDate")


def test_a_group_with_no_time_zone_that_exists_is_stalled() -> None:
    """The CRD refuses one; the database of this operator may be older than the one that took it."""
    windows = [BERLIN | {"timeZone": "Mars/Olympus"}]
    seen = c.outdated(c.settled(updateStrategy={"windows": windows}))
    assert c.steps(seen) == []
    assert c.condition(seen, "Stalled") == ("True", "InvalidSpec")
    assert "spec.updateStrategy.windows[0].timeZone is 'Mars/Olympus': no such time zone" in c.message(seen, "Stalled")
    assert c.condition(c.settled(updateStrategy={"windows": windows}), "Stalled")[0] == "False", "nothing waits for it"


def test_the_pass_wakes_when_the_window_opens_and_not_before() -> None:
    """No look every few seconds: the next pass is as far away as the window, but for what happens meanwhile."""
    for waiting in (c.outdated(closed()), c.settled(**PREFERRED)):
        status = c.status_of(waiting)
        settled = replace(waiting, group_object=waiting.group_object | {"status": status})
        assert c.run(settled).look_again_seconds == 90 * 60
    assert c.run(closed()).look_again_seconds is None
    assert c.run(replace(c.outdated(closed()), now=INSIDE), now=INSIDE).look_again_seconds == UNSETTLED_SECONDS


def test_an_update_that_the_window_leaves_half_done_stops_once_its_last_pod_is_back() -> None:
    """It keeps its turn until then, and lets other groups roll after that."""
    half = c.rolling(c.outdated(closed(), "orders-1", "orders-3"))
    coming = c.rolling(copying(c.outdated(closed(), "orders-1", "orders-3"), 1, 3))
    assert (c.course(coming).turn, c.steps(coming)) == (Turn.HOLDS, [])
    assert c.condition(coming, "UpToDate") == ("False", "RollingUpdate")
    assert f"Waiting for orders-2 to be in sync; outside spec.updateStrategy.windows until {OPENS}" in c.message(
        coming, "UpToDate"
    )
    assert (c.course(half).turn, c.steps(half)) == (Turn.NONE, [])
    assert c.condition(half, "UpToDate") == ("False", "OutsideWindow")
    assert turn_of(half.group_object | {"status": c.status_of(half)}) is Turn.NONE
    assert c.steps(replace(half, now=INSIDE)) == ["replace orders-3"]


def test_a_member_that_the_update_left_out_of_the_set_is_repaired_outside_the_window_and_others_may_roll_then() -> None:
    """A cold key that keeps it out was rolled to one member as the window closed: the corrected spec must not wait for days."""
    kept_out = lacking(c.rolling(copying(c.outdated(closed()), 1, 3)))
    assert (c.course(kept_out).turn, c.steps(kept_out)) == (Turn.HOLDS, ["replace orders-2"])
    repaired = c.rolling(c.outdated(closed(), "orders-1", "orders-3"))
    assert (c.course(repaired).turn, c.steps(repaired)) == (Turn.NONE, [])


def test_a_switchover_within_the_window_and_the_restart_after_it() -> None:
    """The window closes between the two: the former master is a slave, in sync, and waits for the next window."""
    moved = c.seen_with(c.outdated(closed(), "orders-1"), b.record(master=2))
    assert c.steps(moved) == []
    assert c.steps(replace(moved, now=INSIDE)) == ["replace orders-1"]


def test_paused_and_on_delete_say_what_they_said() -> None:
    """A restart that a user asks for does not wait for a window, but it does for the end of the pause."""
    paused = c.outdated(closed(maintenance={"paused": True}), "orders-1")
    assert c.condition(paused, "UpToDate") == ("False", "WaitingForPerson")
    assert c.message(paused, "UpToDate") == "Paused with outdated pods: orders-1 (PodChanged)"
    assert (
        c.run(replace(paused, group_object=paused.group_object | {"status": c.status_of(paused)})).look_again_seconds
        is None
    )
    on_delete = c.outdated(c.settled(updateStrategy={"type": "OnDelete", "windows": [BERLIN]}))
    assert c.condition(on_delete, "UpToDate") == ("False", "WaitingForPerson")


def test_what_supervised_leaves_to_a_person_is_asked_for_within_the_window() -> None:
    seen = c.outdated(c.settled(updateStrategy={"masterUpdate": "Supervised", "windows": [BERLIN]}), "orders-1")
    assert c.condition(seen, "UpToDate") == ("False", "OutsideWindow")
    [step] = c.course(replace(seen, now=INSIDE)).rollout
    assert (step.verb, step.reason) == (Verb.WAIT, Reason.WAITING_FOR_PERSON)


def conditions_at(now: str, seen: Observed) -> list[dict[str, Any]]:
    [written] = [one for one in c.run(seen, now=now).actions if isinstance(one, WriteStatus)]
    found: list[dict[str, Any]] = written.status["conditions"]
    return found


def test_events_of_an_update_with_windows() -> None:
    """It waits, starts, waits again half done, goes on, and ends."""
    outside, within = (conditions_at(now, c.outdated(closed())) for now in (b.NOW, INSIDE))
    done = conditions_at(INSIDE, closed())
    story = [done, outside, outside, within, outside, within, done]
    told = [[note.reason for note in transition_notes(*pair)] for pair in itertools.pairwise(story)]
    waits, starts = ["RollingUpdateWaits"], ["RollingUpdateStarted"]
    assert told == [waits, [], starts, waits, starts, ["RollingUpdateCompleted"]]
