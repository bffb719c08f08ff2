"""Every combination of what can be so of a member: no two reports of it contradict each other, and all use the same sentence.

Heard by controllers, linked to the master, in the SyncStateSet, pod ready, process up: one slave, then two, walk through all of
them. The reports: the status with its conditions, `kubectl brokergroup status` and `explain`, and the page.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kubectl.explain import explanation
from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence
from brokergroup_operator.kubectl.status import page
from brokergroup_operator.observe.group_view import Silence
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.page.group_document import group_document
from brokergroup_operator.page.rows import Severity
from brokergroup_operator.page.sighting import Sighting
from brokergroup_operator.page.what_if import wishes_of
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import run, status_of
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.reconcile.see.observed import Observed

SINCE = 1_795_219_104.0  # 96 s before b.NOW
SINCE_TEXT = "2026-11-20T23:58:24Z"


@dataclass(frozen=True)
class Case:
    """What is so of one slave."""

    heard: bool
    linked: bool
    in_set: bool
    ready: bool
    up: bool

    @property
    def is_possible(self) -> bool:
        """A process that is down is neither heard nor linked, and its pod is not ready."""
        return self.up or not (self.heard or self.linked or self.ready)

    @property
    def is_well(self) -> bool:
        return self.heard and self.linked and self.in_set and self.ready and self.up

    def __str__(self) -> str:
        return " ".join(name if so else f"not-{name}" for name, so in self.__dict__.items())


ALL = [case for bits in itertools.product((True, False), repeat=5) if (case := Case(*bits)).is_possible]


def seen_with(cases: dict[int, Case], *, since_unix_seconds: float = SINCE) -> Observed:
    seen = c.settled()
    out = [one for one, case in cases.items() if not case.in_set]
    assert seen.record is not None
    record = b.record(in_sync=tuple(one for one in seen.record.replicas if one not in out))
    silences = {
        one: Silence(since_unix_seconds=since_unix_seconds, linked=case.linked, answers=case.up)
        for one, case in cases.items()
        if not case.heard
    }
    seen = c.seen_with(
        seen,
        record,
        live=tuple(one for one in (1, 2, 3) if one not in silences),
        unlinked=frozenset(one for one, case in cases.items() if case.heard and not case.linked),
        silences=silences,
    )
    for one, case in cases.items():
        name = f"orders-{one}"
        seen = seen if case.ready else c.not_ready(seen, name)
        seen = seen if case.up else c.with_pods(seen, lambda pod: pod["status"].update(phase="Failed"), name)
    return seen


@dataclass(frozen=True)
class Told:
    """All that is said of a group."""

    status: dict[str, Any]
    document: dict[str, Any]
    explain: list[str]
    printed: str

    @property
    def conditions(self) -> dict[str, dict[str, str]]:
        return {one["type"]: one for one in self.status["conditions"]}

    def member(self, broker_id: int) -> dict[str, Any]:
        return next(one for one in self.status["members"] if one["brokerId"] == broker_id)

    def on_page(self, broker_id: int) -> dict[str, Any]:
        return next(one for one in self.document["members"] if one["id"] == broker_id)

    def holds(self, kind: str) -> bool:
        return self.conditions[kind]["status"] == "True"


def told_of(seen: Observed) -> Told:
    status = status_of(seen)
    shown = b.group_object(replicas=3) | {"status": status}
    heard = Heartbeat(presence=Presence.HERE, message="operator here")
    assert seen.snapshot is not None
    sighting, wishes = Sighting(seen.snapshot, SINCE + 96), wishes_of(shown, seen.record)
    document = group_document(b.KEY, sighting, shown, wishes, set_history=(), incidents=())
    return Told(status, document, list(explanation(shown)), page(shown, [], heard=heard))


def sentences(told: Told) -> Iterator[str]:
    for item in told.conditions.values():
        yield item["message"]
    yield from told.explain
    yield told.printed


@pytest.mark.parametrize("case", ALL, ids=str)
def test_no_two_reports_contradict_each_other(case: Case) -> None:
    seen = seen_with({2: case})
    told = told_of(seen)
    state, message = told.member(2)["state"], told.member(2).get("message")

    assert (state == "InSync") is case.is_well
    assert (message is None) is case.is_well
    assert told.holds("Ready") is case.is_well
    assert told.holds("FailoverSafe") is case.is_well, (
        "Strict on three needs both slaves' votes but one: two candidates"
    )
    assert told.holds("ReplicationHealthy") is (case.linked and case.in_set)
    assert any("broker 2 is" in line for line in told.explain) is not case.is_well
    # The same words in every report.
    if message is not None:
        fact = f"broker 2: {message}"
        assert fact in told.conditions["Ready"]["message"]
        assert fact in told.conditions["FailoverSafe"]["message"]
        if not (case.linked and case.in_set and case.heard):
            assert fact in told.conditions["ReplicationHealthy"]["message"]
        assert told.on_page(2)["fact"] == message
        assert fact in told.document["text"]
        assert fact.partition(" since ")[0] in told.printed
    else:
        assert told.on_page(2)["fact"] == ""
    assert (told.document["severity"] == Severity.WELL) is case.is_well


@pytest.mark.parametrize("case", ALL, ids=str)
def test_nothing_is_blamed_that_is_well(case: Case) -> None:
    told = told_of(seen_with({2: case}))
    for text in sentences(told):
        if case.linked:
            assert "not linked" not in text
            assert "MembersNotLinked" not in text
        if case.heard:
            assert "not heard" not in text
            assert "MembersNotHeard" not in text
        if case.ready:
            assert "not ready" not in text
            assert "describe pod" not in text or not case.up or told.member(2)["state"] == "OutOfSync"
        if case.in_set:
            assert "not in the SyncStateSet" not in text
    assert ("alive: 1;" in told.conditions.get("DegradedDurability", {}).get("message", "")) is False


@functools.cache
def alone_of(broker_id: int, case: Case) -> dict[str, Any]:
    members: list[dict[str, Any]] = status_of(seen_with({broker_id: case}))["members"]
    return next(item for item in members if item["brokerId"] == broker_id)


@pytest.mark.sampled
@pytest.mark.parametrize(("one", "other"), sample(list(itertools.product(ALL, repeat=2)), 108), ids=str)
def test_two_members_at_once(one: Case, other: Case) -> None:
    """What is said of one slave does not depend on the other: 324 groups, a third of them in `make test`."""
    seen = seen_with({2: one, 3: other})
    status = status_of(seen)
    conditions = {item["type"]: item for item in status["conditions"]}
    for broker_id, case in ((2, one), (3, other)):
        alone = alone_of(broker_id, case)
        together = next(item for item in status["members"] if item["brokerId"] == broker_id)
        assert (together["state"], together.get("message")) == (alone["state"], alone.get("message"))
        if not case.is_well:
            told = f"broker {broker_id}: {together['message']}"
            named = conditions["Ready"]["reason"] in {"MembersPending", "NotEnoughInSyncReplicas"}
            assert named or told in conditions["Ready"]["message"]
    well = one.is_well and other.is_well
    assert (conditions["Ready"]["status"] == "True") is well
    assert conditions["FailoverSafe"]["status"] == str(well)
    replicating = all(case.linked and case.in_set for case in (one, other))
    assert (conditions["ReplicationHealthy"]["status"] == "True") is replicating
    acknowledging = sum(case.in_set and (case.linked if case.up else False) for case in (one, other))
    assert ("DegradedDurability" in conditions) is (acknowledging == 0)


def test_the_case_of_the_two_nodes() -> None:
    """Linked, acknowledging, its pod ready, and no heartbeat for 96 s."""
    told = told_of(seen_with({2: Case(heard=False, linked=True, in_set=True, ready=True, up=True)}))
    fact = f"linked, not heard by any controller since {SINCE_TEXT}"
    expected = ("Unheard", fact, "InSyncStateSet")
    assert (told.member(2)["state"], told.member(2)["message"], told.member(2)["seat"]) == expected
    ready, safe = told.conditions["Ready"], told.conditions["FailoverSafe"]
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "MembersNotHeard", f"broker 2: {fact}")
    assert (safe["status"], safe["reason"], safe["message"]) == ("False", "MembersNotHeard", f"broker 2: {fact}")
    healthy = told.conditions["ReplicationHealthy"]
    assert (healthy["status"], healthy["message"]) == (
        "True",
        f"All members replicate from master 1; broker 2: {fact}",
    )
    assert "DegradedDurability" not in told.conditions
    assert any(
        line.startswith("  broker 2 is Unheard: linked, not heard by any controller for ") for line in told.explain
    )
    assert "! broker 2: linked, not heard by any controller for " in told.printed
    assert told.document["text"] == f"broker 2: {fact}"


@pytest.mark.parametrize("heard_by", [(), ("10.0.0.7:9878",)])
def test_another_plane_that_hears_it_is_named(heard_by: tuple[str, ...]) -> None:
    seen = seen_with({2: Case(heard=False, linked=True, in_set=True, ready=True, up=True)})
    assert seen.snapshot is not None
    silences = {2: replace(seen.snapshot.silences[2], heard_by=heard_by)}
    told = told_of(replace(seen, snapshot=replace(seen.snapshot, silences=silences)))
    assert ("not heard by any controller" in told.member(2)["message"]) is not bool(heard_by)
    assert told.member(2)["message"].endswith("but by 10.0.0.7:9878") is bool(heard_by)


def test_a_silence_that_goes_on_is_no_change_of_the_status() -> None:
    unheard = Case(heard=False, linked=True, in_set=True, ready=True, up=True)
    seen = seen_with({2: unheard}, since_unix_seconds=SINCE + 90)
    shown = b.group_object() | {"status": status_of(seen)}
    later = [type(action).__name__ for action in run(replace(seen, group_object=shown)).actions]
    assert "WriteStatus" not in later


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_view_is_one_for_all(case: Case) -> None:
    seen = seen_with({2: case})
    view = member_view(seen.record, seen.snapshot, 2)
    assert (view.heard, view.linked, view.in_set) == (case.heard, case.linked, case.in_set)
    assert view.acknowledges is (case.in_set and case.linked and case.up)
