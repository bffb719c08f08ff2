"""A slave that runs and that no controller hears: when its process is replaced, and a plane that hears no broker itself."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.observe.group_view import LostLink, Silence
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import DeleteObject, RemoveMember, SwitchMaster
from brokergroup_operator.reconcile.see import observed
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, message, run, status_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from brokergroup_operator.reconcile.see.observed import Observed


NOW = dt.datetime.fromisoformat(b.NOW)


def text(at: dt.datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def unheard(*ids: int, seconds: float = 96.0, seen: Observed | None = None, **silence: Any) -> Observed:
    """These slaves run, linked to the master; their last heartbeat is `seconds` old."""
    seen = seen or c.settled()
    assert seen.record is not None
    since = NOW.timestamp() - seconds
    known = Silence(**({"since_unix_seconds": since, "linked": True, "answers": True} | silence))
    live = tuple(one for one in seen.record.replicas if one not in ids)
    return c.live(seen, *live, silences=dict.fromkeys(ids, known))


def unlinked(*ids: int, seen: Observed | None = None, linked_now: bool = False, lost: bool = True) -> Observed:
    """These slaves are heard, have lost their links, and were notified of their master nine times."""
    seen = seen or c.settled()
    links = dict.fromkeys(ids, LostLink(NOW.timestamp() - 1, 9)) if lost else {}
    return c.seeing(seen, unlinked=frozenset() if linked_now else frozenset(ids), lost_links=links)


def noted(seen: Observed, *, count: int, seconds_ago: float) -> Observed:
    """The status says how often the process of broker 2 was replaced, and when last."""
    at = text(NOW - dt.timedelta(seconds=seconds_ago))
    member = {"brokerId": 2, "replacements": count, "replacedAt": at}
    return c.with_status(seen, {"members": [member]})


def started(seen: Observed, *, seconds_ago: float) -> Observed:
    at = text(NOW - dt.timedelta(seconds=seconds_ago))

    def start(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at}}

    return c.with_pods(seen, start, "orders-2")


def outside(seen: Observed) -> Observed:
    """Broker 2 is not in the SyncStateSet."""
    assert seen.record is not None
    return c.recorded(seen, sync_state_set=seen.record.sync_state_set - {2})


def never_registered(seconds: float, *, claimed: bool = True, ready: bool = True) -> Observed:
    """Broker 2 was granted its id (1013), its pod has been running for `seconds`, and no 1003 has come."""
    seen = outside(c.with_replica(c.settled(), 2, registered=False, **({} if claimed else {"register_check_code": ""})))
    seen = c.live(started(seen, seconds_ago=seconds), 1, 3)
    return seen if ready else c.not_ready(seen, "orders-2")


def registered_under(address: str, seconds: float = 61, **silence: Any) -> Observed:
    """Broker 2 has a pod that is `seconds` old; its registration is an earlier process's, at this address."""
    seen = unheard(2, seconds=seconds + 30, **({"linked": False, "answers": False} | silence))
    return started(outside(c.with_replica(seen, 2, address=address)), seconds_ago=seconds)


STRICT_ON_TWO: dict[str, Any] = {"replicas": 2, "durability": "Strict"}
EPHEMERAL_OF_TWO: dict[str, Any] = {"replicas": 2, "durability": "Available", "storage": {"ephemeral": {"size": "1Gi"}}}
CASES: list[tuple[str, Observed, list[str]]] = [
    ("all are heard", c.settled(), []),
    # A failover replaces it; here it would be killed without a successor.
    ("a master that is not heard", unheard(1), []),
    ("runs, and never registered", never_registered(61), ["replace orders-2"]),
    ("runs, and has not taken its id", never_registered(61, claimed=False), ["replace orders-2"]),
    ("has not registered yet", never_registered(59), []),
    ("never registered, and its port is closed", never_registered(61, ready=False), []),
    ("registered as the pod before it, and never as this one", registered_under("10.1.0.9:10911"), ["replace orders-2"]),
    ("and has not done so yet", registered_under("10.1.0.9:10911", seconds=59), []),
    ("and another plane hears it", registered_under("10.1.0.9:10911", heard_by=("10.0.0.7:9878",)), []),
    ("registered as this pod, and nothing shows that it runs", registered_under("10.1.0.2:10911"), []),
    ("long enough", unheard(2), ["replace orders-2"]),
    ("just long enough", unheard(2, seconds=30), ["replace orders-2"]),
    ("not long enough", unheard(2, seconds=29), []),
    ("ten of its heartbeat timeouts", unheard(2, seen=c.settled(failover={"heartbeatTimeoutMilliseconds": 10_000})), []),
    (
        "after ten of its heartbeat timeouts",
        unheard(2, seconds=100, seen=c.settled(failover={"heartbeatTimeoutMilliseconds": 10_000})), ["replace orders-2"],
    ),
    ("its process is new", started(unheard(2), seconds_ago=20), []),
    ("its process is old", started(unheard(2), seconds_ago=40), ["replace orders-2"]),
    ("it answers, and the master has no link to it", unheard(2, linked=False), ["replace orders-2"]),
    ("it is linked, and does not answer us", unheard(2, answers=False), ["replace orders-2"]),
    ("nothing shows that it runs", unheard(2, linked=False, answers=False), []),
    ("no broker was asked yet", unheard(2, linked=None, answers=None), []),
    ("another plane hears it", unheard(2, heard_by=("10.0.0.7:9878",)), []),
    ("not ready for that very reason", c.not_ready(unheard(2), "orders-2"), ["replace orders-2"]),
    ("its pod is stopping", c.going(unheard(2), "orders-2"), []),
    ("another member's pod is stopping", c.going(unheard(2), "orders-3"), []),
    ("another member is not ready", c.not_ready(unheard(2), "orders-3"), []),
    ("two of them: one at a time", unheard(2, 3), ["replace orders-2"]),
    ("two of them, both not ready", c.not_ready(unheard(2, 3), "orders-2", "orders-3"), ["replace orders-2"]),
    ("a change of master is under way", c.seeing(unheard(2), in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)), []),
    ("another plane changes the master", c.seeing(unheard(2), is_changing=True), []),
    ("no master serves", c.seeing(unheard(2), writable=False), []),
    ("paused", unheard(2, seen=c.settled(maintenance={"paused": True})), []),
    ("two are needed and there are two", unheard(2, seen=c.settled(**STRICT_ON_TWO)), []),
    (
        "two are needed, it is the second, and it has no link: nothing acknowledges by it",
        unheard(2, seen=c.settled(**STRICT_ON_TWO), linked=False), ["replace orders-2"],
    ),
    ("one is needed and there are two", unheard(2, seen=c.settled(replicas=2, durability="Available")), ["replace orders-2"]),
    (
        "its disk goes with its pod, and only the master has another copy",
        unheard(2, seen=c.settled(**EPHEMERAL_OF_TWO)), [],
    ),
    (
        "its disk goes with its pod, and two have another copy",
        unheard(2, seen=c.settled(storage={"ephemeral": {"size": "1Gi"}})), ["replace orders-2"],
    ),
    ("not linked, and still told again", unlinked(2, lost=False), []),
    ("no telling links it", unlinked(2), ["replace orders-2"]),
    ("its link came back, and does not stay", unlinked(2, linked_now=True), ["replace orders-2"]),
    ("no telling links it, and its process is new", started(unlinked(2), seconds_ago=29), []),
    ("no telling links it, and its process is old enough", started(unlinked(2), seconds_ago=30), ["replace orders-2"]),
    ("no telling links it, and it is master by now", unlinked(1), []),
    ("no telling links two: one at a time", unlinked(2, 3), ["replace orders-2"]),
    ("no telling links it, and another member is away", c.going(unlinked(2), "orders-3"), []),
    ("no telling links it, and the master is being changed", c.seeing(unlinked(2), is_changing=True), []),
    ("no telling links it: nothing acknowledges by it", unlinked(2, seen=c.settled(**STRICT_ON_TWO)), ["replace orders-2"]),
    (
        "no telling links it, its disk goes with its pod, and only the master has another copy",
        unlinked(2, seen=c.settled(**EPHEMERAL_OF_TWO)), [],
    ),
    ("no telling links it, replaced once", noted(unlinked(2), count=1, seconds_ago=59), []),
    ("no telling links it, replaced long ago", noted(unlinked(2), count=1, seconds_ago=60), ["replace orders-2"]),
    ("replaced once", noted(unheard(2), count=1, seconds_ago=59), []),
    ("replaced once, twice as long ago", noted(unheard(2), count=1, seconds_ago=60), ["replace orders-2"]),
    ("replaced three times", noted(unheard(2, seconds=900), count=3, seconds_ago=239), []),
    ("replaced three times, long ago", noted(unheard(2, seconds=900), count=3, seconds_ago=240), ["replace orders-2"]),
    ("replaced often", noted(unheard(2, seconds=9000), count=50, seconds_ago=3599), []),
    ("replaced often, an hour ago", noted(unheard(2, seconds=9000), count=50, seconds_ago=3600), ["replace orders-2"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "steps"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_when_it_is_replaced(seen: Observed, steps: list[str]) -> None:
    assert c.steps(seen) == steps


@pytest.mark.parametrize(
    "seen",
    [
        c.live(
            c.settled(),
            2,
            3,
            masters_silence=Silence(since_unix_seconds=NOW.timestamp() - 96, linked=True, answers=True),
            writable=False,
        ),
        c.with_pods(
            c.live(c.with_replica(c.settled(), 1, address="10.1.0.9:10911"), 2, 3, writable=False),
            lambda pod: pod["metadata"].update(creationTimestamp=text(NOW - dt.timedelta(seconds=96))),
            "orders-1",
        ),
    ],
    ids=["it answers", "its pod is new, and has not registered"],
)
def test_of_a_master_that_is_not_heard_no_replacement_is_told(seen: Observed) -> None:
    """A failover replaces it. While its process were waited for here, the status would promise what no pass does."""
    told = " ".join(one["message"] for one in c.conditions(seen).values())
    assert "broker 1: " in told
    assert "its process is" not in told


def test_it_is_said_why_and_counted() -> None:
    seen = unheard(2, told_to_register=2)
    [deletion] = c.actions(seen, plans.DeleteObject)
    assert (deletion.name, deletion.uid) == ("orders-2", "pod-uid-2")
    assert deletion.note is not None
    expected = ("UnheardMemberReplaced", True, "orders-2")
    assert (deletion.note.reason, deletion.note.warning, deletion.note.related) == expected
    since = text(NOW - dt.timedelta(seconds=96))
    assert deletion.note.message == (
        f"Stopping pod orders-2: broker 2: linked, not heard by any controller since {since};"
        " its process is replaced; asked 2 times to register, in vain"
    )
    member = status_of(seen)["members"][1]
    assert (member["replacements"], member["replacedAt"]) == (1, b.NOW)
    actions = [type(one).__name__ for one in run(seen).actions]
    assert actions.index("WriteStatus") < actions.index("DeleteObject"), "an operator that dies in between has counted"


def test_an_unlinked_one_is_replaced_with_its_own_words() -> None:
    [deletion] = c.actions(unlinked(2), plans.DeleteObject)
    assert deletion.note is not None
    assert (deletion.note.reason, deletion.note.warning) == ("UnlinkedMemberReplaced", True)
    assert deletion.note.message == (
        "Stopping pod orders-2: broker 2: heard, not linked to the master; its process is replaced;"
        " its role change was sent 9 times, in vain"
    )
    member = status_of(unlinked(2))["members"][1]
    assert (member["state"], member["replacements"], member["replacedAt"]) == ("Unlinked", 1, b.NOW)
    assert condition(unlinked(2, linked_now=True), "FailoverSafe") == condition(unlinked(2), "FailoverSafe")


@pytest.mark.parametrize(
    ("seen", "kind", "reason", "end"),
    [
        (
            unheard(2, seconds=10), "Reconciling", "RepairingMembers",
            "if it stays so, its process is replaced at 2026-11-21T00:00:20Z",
        ),
        (
            unheard(2, seen=c.settled(**STRICT_ON_TWO)), "Stalled", "MembersNotHeard",
            "without it 1 would acknowledge, and 2 are needed: kubectl delete pod orders-2, when writes may wait for it",
        ),
        (unlinked(2, seen=c.settled(**EPHEMERAL_OF_TWO)), "Stalled", "MembersNotLinked", ""),
    ],
    ids=["when it will be", "it would cost writes", "its copy is needed"],
)  # fmt: skip
def test_what_is_said_of_one_that_is_not_replaced_yet(seen: Observed, kind: str, reason: str, end: str) -> None:
    assert condition(seen, kind) == ("True", reason)
    assert message(seen, kind).endswith(end)
    assert kind == "Stalled" or run(seen).look_again_seconds is not None


@pytest.mark.parametrize(
    ("seen", "secret_changed_seconds_ago", "replaced"),
    [
        # Before the last replacement: the fifth pause, 480 s, as without a Secret; after it: the first pause, and that is over.
        (noted(unheard(2, seconds=400), count=4, seconds_ago=400), 3000, False),
        (noted(unheard(2, seconds=400), count=4, seconds_ago=400), 200, True),
        # Just now: with the new key it may register by itself. Written again and again it puts a replacement off for an hour.
        (noted(unheard(2, seconds=400), count=4, seconds_ago=400), 10, False),
        (unheard(2, seconds=3629), 10, False),
        (unheard(2, seconds=3631), 10, True),
    ],
)
def test_a_changed_secret_begins_with_the_first_pause_again(
    seen: Observed, secret_changed_seconds_ago: float, replaced: bool
) -> None:
    at = text(NOW - dt.timedelta(seconds=secret_changed_seconds_ago))
    changed = replace(seen, credentials_changed_at=at)
    assert bool(c.actions(changed, plans.DeleteObject)) == replaced
    assert not replaced or status_of(changed)["members"][1]["replacements"] == 1


@pytest.mark.parametrize(
    ("replicas", "minimum"), [(replicas, minimum) for replicas in (2, 3, 4, 5) for minimum in range(1, replicas + 1)]
)
def test_it_never_costs_writes(replicas: int, minimum: int) -> None:
    """Whichever slaves are unheard: enough others acknowledge while one is replaced, or none is."""
    spec: dict[str, Any] = {"replicas": replicas, "replication": {"minInSyncReplicas": minimum}}
    for count in range(1, replicas):
        for ids in itertools.combinations(range(2, replicas + 1), count):
            steps = c.steps(unheard(*ids, seen=c.settled(**spec)))
            assert len(steps) == (replicas - 1 >= minimum), (ids, steps)


def test_one_that_is_never_heard_is_replaced_ever_more_seldom_also_by_operators_that_start_anew() -> None:
    """Six hours of passes, each of them from the objects alone."""
    seen, at, replaced = unheard(2), NOW, list[float]()
    begun = NOW
    for _ in range(6 * 3600 // 30):
        at += dt.timedelta(seconds=30)
        known = Silence(since_unix_seconds=begun.timestamp(), linked=True, answers=True)
        plan = evaluate(c.seeing(seen, silences={2: known}), b.SETTINGS, now=text(at))
        for action in plan.actions:
            if isinstance(action, plans.WriteStatus):
                seen = c.with_status(seen, action.status)
            if isinstance(action, plans.DeleteObject):
                replaced.append((at - NOW).total_seconds())
                # Its next process, and it is silent as well.
                begun = at
    pauses = [later - earlier for earlier, later in itertools.pairwise(replaced)]
    assert pauses[:7] == [60, 120, 240, 480, 960, 1920, 3600]
    assert len(replaced) < 12


def test_after_a_good_hour_it_begins_with_the_first_pause_again() -> None:
    assert "replacements" in status_of(noted(c.settled(), count=3, seconds_ago=3599))["members"][1]
    assert "replacements" not in status_of(noted(c.settled(), count=3, seconds_ago=3600))["members"][1]
    assert "replacements" in status_of(noted(unheard(2, seconds=10), count=3, seconds_ago=7200))["members"][1]


def test_what_others_write_on_a_secret_is_no_change_of_its_credentials() -> None:
    key: dict[str, Any] = {"f:data": {"f:accessKey": {}}}
    annotations: dict[str, Any] = {"f:metadata": {"f:annotations": {}}}
    fields = [
        {"manager": "kubectl", "time": "2026-11-02T00:00:00Z", "fieldsV1": key},
        {"manager": "argocd", "time": "2026-11-03T00:00:00Z", "fieldsV1": annotations},
    ]
    secret: dict[str, Any] = {"metadata": {"creationTimestamp": "2026-11-01T00:00:00Z", "managedFields": fields}}
    assert observed.data_changed_at(secret) == "2026-11-02T00:00:00Z"
    del secret["metadata"]["managedFields"]
    assert observed.data_changed_at(secret) == "2026-11-01T00:00:00Z"


ELSEWHERE = Silence(since_unix_seconds=0.0, linked=True, answers=True, heard_by=("10.0.0.7:9878",))


def hears(*ids: int, seen: Observed | None = None, said_of_others: Silence = ELSEWHERE) -> Observed:
    """Only these members' heartbeats arrive here; the master answers as master."""
    seen = seen or c.settled()
    assert seen.record is not None
    silences = {one: said_of_others for one in seen.record.replicas if one not in ids}
    master = silences.pop(seen.record.master_broker_id or 0, None)
    return c.live(seen, *ids, silences=silences, masters_silence=master, writable=True)


def stops_or_moves(seen: Observed) -> list[plans.Action]:
    return [one for one in run(seen).actions if isinstance(one, DeleteObject | SwitchMaster | RemoveMember)]


@pytest.mark.parametrize("ids", [(), (2, 3), (1,)], ids=["no broker", "the slaves alone", "the master alone"])
def test_the_group_is_ready_by_what_the_master_and_the_other_plane_say(ids: Collection[int]) -> None:
    """And nothing voluntary is done."""
    seen = hears(*ids)
    for kind in ("Ready", "Available", "ReplicationHealthy"):
        assert condition(seen, kind)[0] == "True", kind
    text = message(seen, "Ready")
    assert text.startswith("3 members in sync; broker ")
    assert text.endswith("but by 10.0.0.7:9878")
    outdated = hears(*ids, seen=c.outdated(c.settled(), "orders-1", "orders-2", "orders-3"))
    assert condition(outdated, "FailoverSafe") == ("False", "MembersNotHeard")
    assert stops_or_moves(outdated) == []


@pytest.mark.parametrize(
    "said", [{"heard_by": ()}, {"linked": False}], ids=["no plane hears them", "they have no link"]
)
def test_a_member_of_which_nothing_good_is_said_is_not_ready(said: dict[str, Any]) -> None:
    assert condition(hears(1, said_of_others=replace(ELSEWHERE, **said)), "Ready") == ("False", "MembersNotHeard")


def test_no_id_is_cleaned_from_the_record_by_a_plane_that_does_not_hear_the_master() -> None:
    """It can't distinguish a living member from a dead one."""
    assert stops_or_moves(hears(seen=c.settled(replicas=2))) == []
