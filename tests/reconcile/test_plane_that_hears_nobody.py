"""The plane that reconciles is the third one after `replicaCount` 2 to 3: no broker knows it yet, and another plane hears all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.observe.group_view import Silence
from brokergroup_operator.reconcile.plan import DeleteObject, RemoveMember, SwitchMaster
from tests.reconcile import cases as c
from tests.reconcile.passes import condition, run, status_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from brokergroup_operator.reconcile.see.observed import Observed

ELSEWHERE = Silence(since_unix_seconds=0.0, linked=True, answers=True, heard_by=("10.0.0.7:9878",))


def hears(*ids: int, seen: Observed | None = None, said_of_others: Silence = ELSEWHERE) -> Observed:
    """Only these members' heartbeats arrive here; the master answers as master."""
    seen = seen or c.settled()
    assert seen.record is not None
    silences = {one: said_of_others for one in seen.record.replicas if one not in ids}
    master = silences.pop(seen.record.master_broker_id or 0, None)
    return c.live(seen, *ids, silences=silences, masters_silence=master, writable=True)


@pytest.mark.parametrize("ids", [(), (2, 3), (1,)], ids=["nobody", "the slaves alone", "the master alone"])
def test_the_group_is_ready_by_what_the_master_and_the_other_plane_say(ids: Collection[int]) -> None:
    seen = hears(*ids)
    for kind in ("Ready", "Available", "ReplicationHealthy"):
        assert condition(seen, kind)[0] == "True", kind
    [told] = [one["message"] for one in status_of(seen)["conditions"] if one["type"] == "Ready"]
    assert told.startswith("3 members in sync; broker ")
    assert told.endswith("but by 10.0.0.7:9878")


@pytest.mark.parametrize("ids", [(), (2, 3), (1,)], ids=["nobody", "the slaves alone", "the master alone"])
def test_it_does_nothing_voluntary(ids: Collection[int]) -> None:
    seen = hears(*ids, seen=c.outdated(c.settled(), "orders-1", "orders-2", "orders-3"))
    assert condition(seen, "FailoverSafe") == ("False", "MembersNotHeard")
    assert not [one for one in run(seen).actions if isinstance(one, DeleteObject | SwitchMaster | RemoveMember)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (replace(ELSEWHERE, heard_by=()), "MembersNotHeard"),
        (replace(ELSEWHERE, linked=False), "MembersNotHeard"),
    ],
    ids=["no plane hears them", "they have no link"],
)
def test_a_member_of_which_nothing_good_is_said_is_not_ready(said: Silence, reason: str) -> None:
    assert condition(hears(1, said_of_others=said), "Ready") == ("False", reason)


def test_no_id_is_cleaned_from_the_record_by_a_plane_that_does_not_hear_the_master() -> None:
    """It could not tell a living member from a dead one."""
    seen = hears(seen=c.settled(replicas=2))
    assert not [one for one in run(seen).actions if isinstance(one, DeleteObject | SwitchMaster | RemoveMember)]
