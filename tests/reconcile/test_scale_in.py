"""How members leave: who is chosen, in which order it happens, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def four(wanted: int = 3, **spec: object) -> Observed:
    """Four members, of whom `wanted` are to stay."""
    return c.wishing(c.settled(replicas=4, **spec), replicas=wanted, **spec)


STOPPED = c.live(c.without_pods(four(), "orders-4"), 1, 2, 3)
LAST_SEATS = c.live(c.without_pods(c.seen_with(four(), b.record(replicas=4, in_sync=(1, 4))), "orders-4"), 1, 2, 3)

NEVER_REGISTERED = c.live(
    c.without_pods(
        replace(
            four(),
            record=replace(
                b.record(), next_broker_id=5, replicas={**b.record().replicas, 4: b.reserved(4).replicas[4]}
            ),
        ),
        "orders-4",
    ),
    1, 2, 3,
)  # fmt: skip

CASES: list[tuple[str, Observed, list[str]]] = [
    ("the highest id", four(), ["stop orders-4"]),
    ("not the master", c.seen_with(four(), b.record(replicas=4, master=4)), ["stop orders-3"]),
    (
        "who is outside the set first",
        c.seen_with(four(), b.record(replicas=4, in_sync=(1, 3, 4))),
        ["stop orders-2"],
    ),
    ("whoever was stopped stays the chosen one", c.going(four(), "orders-3"), []),
    ("forgotten once it is gone", STOPPED, ["forget orders-4"]),
    ("one after the other", four(wanted=2), ["stop orders-4"]),
    (
        "who has no seat may go although the others are few",
        c.seen_with(four(), b.record(replicas=4, in_sync=(1, 4))),
        ["stop orders-3"],
    ),
    (
        "also at the floor",
        c.seen_with(c.wishing(c.settled(), replicas=2, durability="Strict"), b.record(in_sync=(1, 3))),
        ["stop orders-2"],
    ),
    ("without a master nobody leaves", c.seen_with(four(), b.record(replicas=4, master=None)), []),
    ("an id that never registered leaves at once", NEVER_REGISTERED, ["forget orders-4"]),
    ("gone, but its seat is needed: it comes back", LAST_SEATS, []),
]


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    assert c.steps_after_marking(seen) == expected


def test_the_choice_is_noted_before_anything_is_done() -> None:
    assert c.steps(four()) == ["mark orders-4"]
    assert c.steps(c.marked(four(), "orders-4")) == ["stop orders-4"]


def test_the_noted_choice_stands() -> None:
    assert c.steps(c.marked(four(), "orders-2")) == ["stop orders-2"]


def test_an_operator_that_has_just_started_waits_and_makes_nobody_anew() -> None:
    cold = c.live(c.marked(c.without_pods(four(), "orders-4"), "orders-4"), writable=False)
    assert c.steps(cold) == []
    assert not c.course(cold).runs(4)


def test_who_leaves_is_not_made_again_and_who_must_stay_is() -> None:
    assert not c.course(STOPPED).runs(4)
    assert c.course(STOPPED).runs(3)
    assert c.course(LAST_SEATS).runs(4)
    refused = c.course(LAST_SEATS).leaving
    assert refused is not None
    assert refused.reason.value == "ScaleInRefused"


def test_three_to_two_under_strict_needs_both_that_stay() -> None:
    shrink = c.wishing(c.settled(), replicas=2, durability="Strict")
    assert c.steps_after_marking(shrink) == ["stop orders-3"]
    assert c.steps_after_marking(c.not_ready(c.live(shrink, 1, 3), "orders-2")) == ["stop orders-2"], (
        "who is dead leaves first"
    )


def test_two_to_one_keeps_the_master() -> None:
    assert c.steps_after_marking(c.wishing(c.settled(replicas=2), replicas=1)) == ["stop orders-2"]


def test_decommission_takes_the_one_named_after_a_switchover() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=1)) == ["switch orders-1"]
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=2)) == ["stop orders-2"]
    stopped = c.live(c.without_pods(c.settled(), "orders-2"), 1, 3)
    assert c.steps_after_marking(c.running(stopped, "Decommission", brokerId=2)) == ["forget orders-2"]


def test_nobody_leaves_below_the_floor() -> None:
    seen = c.running(c.seen_with(c.settled(), b.record(in_sync=(1, 3))), "Decommission", brokerId=3)
    refused = c.course(seen).leaving
    assert c.steps_after_marking(seen) == []
    assert refused is not None
    assert (refused.verb.value, refused.reason.value) == ("refuse", "ScaleInRefused")
    assert "orders-3 can't leave: Beside master 1, 1 live members in sync are needed" in refused.why


def test_the_only_member_can_not_be_decommissioned() -> None:
    seen = c.running(c.settled(replicas=1), "Decommission", brokerId=1)
    assert c.steps_after_marking(seen) == []
    assert c.course(seen).runs(1)


def test_a_rebuild_gives_up_the_volume_and_only_then_the_id() -> None:
    seen = c.running(c.settled(), "Rebuild", brokerId=3)
    assert c.steps_after_marking(seen) == ["stop orders-3"]
    assert c.steps_after_marking(c.live(c.going(seen, "orders-3"), 1, 2)) == []
    stopped = c.live(c.without_pods(seen, "orders-3"), 1, 2)
    assert c.steps_after_marking(stopped) == ["drop volume orders-3"]
    claim = stopped.claims["orders-3"]
    leaving = {**stopped.claims, "orders-3": claim | {"metadata": claim["metadata"] | {"deletionTimestamp": b.NOW}}}
    assert c.steps_after_marking(replace(stopped, claims=leaving)) == []
    # Then it is lost like any other volume: a new id is reserved, and this one is cleaned when that is in sync.
    gone = replace(stopped, claims=b.without(stopped.claims, "orders-3"))
    assert c.course(gone).leaver is None
    assert c.steps_after_marking(gone) == []


def test_the_master_is_rebuilt_after_a_switchover() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Rebuild", brokerId=1)) == ["switch orders-1"]


def test_a_member_on_a_lost_node_is_rebuilt_without_waiting_for_its_pod() -> None:
    seen = c.live(c.going(c.running(c.settled(), "Rebuild", brokerId=3), "orders-3", since=c.EARLIER), 1, 2)
    assert c.steps_after_marking(seen) == ["drop volume orders-3"]
    claim = seen.claims["orders-3"]
    held = {**seen.claims, "orders-3": claim | {"metadata": claim["metadata"] | {"deletionTimestamp": b.NOW}}}
    assert c.steps_after_marking(replace(seen, claims=held)) == ["forget orders-3"]


def test_an_operation_for_an_id_that_is_gone_does_nothing() -> None:
    assert c.steps_after_marking(c.running(c.settled(), "Decommission", brokerId=9)) == []
