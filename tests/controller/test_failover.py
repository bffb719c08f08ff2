"""A master is lost: what is fenced first, which member is elected, in which order brokers are notified, when no one is elected."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.detect import master_watch
from brokergroup_operator.controller.group.notes import MemberNotes
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.fence.watchman import controller_question, told_by
from brokergroup_operator.observe.timeline import NO_ANSWER_WORDS, RAN_ON_WORDS, Cause, Outcome, Step, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from rocketmq_remoting.address import Address
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.controller.conftest import group_of, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, Fencer, RefusingStore, World
from tests.support.fake_broker import FakeBroker, eventually
from tests.support.fake_name_server import FakeNameServer


async def frozen_master(group: World, **more: Any) -> tuple[ControllerPlane, FakeBroker]:
    """Start three brokers under a plane and freeze the master; return both."""
    plane, (first, *_) = await group.three_under(**more)
    first.freeze()
    return plane, first


async def test_a_dead_master_is_replaced_at_once_and_all_are_told_in_order(
    group: World, name_server: FakeNameServer
) -> None:
    plane, (first, _, _) = await group.three_under(wishes={"name_servers": (await name_server.start(),)})
    group.journal.clear()
    await first.kill()
    incident = await group.incident()
    assert (incident.trigger, incident.outcome) == (Trigger.CONNECTION_REFUSED, Outcome.COMPLETED)
    assert (incident.from_broker_id, incident.to_broker_id) == (1, 2)
    assert (incident.epoch_before, incident.epoch_after) == (1, 2)
    assert list(incident.milliseconds()) == ["detected", "decided", "committed", "notified", "roleChanged", "inSync"]
    assert sorted(incident.milliseconds().values()) == list(incident.milliseconds().values())
    assert not incident.unfenced
    journal = [line for line in group.journal if not line.startswith("906 to 2")]
    assert journal[:6] == [f"104 {first.address}", "1008 to 3", "3 slave 2", "1008 to 2", "2 master 2", "906 to 3"]
    assert snapshot_of(plane).writable
    assert snapshot_of(plane).last_failover is incident


@pytest.mark.parametrize(
    "cut_off",
    [False, pytest.param(True, marks=pytest.mark.real_time)],
    ids=["frozen", "nothing answers at its address"],
)
async def test_a_frozen_master_is_killed_before_anybody_is_elected(group: World, cut_off: bool) -> None:
    """CNPG #7407, #7465, canonical/postgresql-operator #712, #1152: two masters, because the old one was not stopped.

    The kernel of a frozen master takes connections. Where nothing answers and the kubelet finds it running, it was cut off.
    """
    fencer = Fencer(group, how=f"pod orders-1 {RAN_ON_WORDS}")
    _, first = await frozen_master(group, fencer=fencer)
    with nothing_answers_at(first) if cut_off else contextlib.nullcontext():
        incident = await group.incident()
    assert fencer.fenced == [1]
    assert first.dead
    assert (incident.trigger, incident.outcome) == (Trigger.SILENCE, Outcome.COMPLETED)
    assert incident.steps[Step.DETECTED] <= incident.steps[Step.FENCED] <= incident.steps[Step.DECIDED]
    assert not incident.unfenced
    assert (NO_ANSWER_WORDS in incident.evidence) == cut_off
    assert incident.cause is (Cause.PARTITION if cut_off else Cause.UNKNOWN)
    assert group.master().broker_id == 2


@contextlib.contextmanager
def nothing_answers_at(broker: FakeBroker) -> Iterator[None]:
    """Connections to this address are neither accepted nor refused: the listener's queue is full."""
    host, _, port = broker.address.rpartition(":")
    listener = broker._server._listener  # its open connections must stay
    assert listener is not None
    listener._server.close()
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((host, int(port)))
        full.listen(0)
        for filling in (first, second):
            filling.settimeout(0)
            filling.connect_ex((host, int(port)))
        yield


@pytest.mark.parametrize(
    "trusted", ["", "the fence inside its pod kills it after 2.5 s"], ids=["nothing", "its own fence"]
)
async def test_a_fence_that_is_not_confirmed_is_told(group: World, trusted: str) -> None:
    """CNPG #11347, #11348: an old primary that does not answer held the failover up.

    On a node that is cut off no kubelet answers: the incident names the fence that is relied on, such as the one in the pod.
    """
    await frozen_master(group, wishes={"unconfirmed_trust": trusted}, fencer=Fencer(group, confirms=False))
    incident = await group.incident()
    assert (incident.unfenced, incident.outcome) == (True, Outcome.COMPLETED)
    assert incident.unconfirmed_trust == trusted
    assert not trusted or trusted in incident.evidence


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize("untouched", [True, False], ids=["found nothing to kill", "no answer"])
async def test_where_the_fence_confirms_nothing_the_fence_timeout_passes_before_the_election(
    group: World, untouched: bool
) -> None:
    """However soon the fence from outside ends, the fence in the pod may still be about to kill."""
    fencer = Fencer(group, confirms=False, untouched=untouched)
    await frozen_master(group, wishes={"fence_timeout_seconds": 1.0}, fencer=fencer)
    incident = await group.incident()
    assert incident.unfenced
    assert incident.steps[Step.DECIDED] - incident.steps[Step.DETECTED] >= 1.0


async def test_a_master_that_is_heard_while_an_empty_fence_waits_is_left_alone(group: World) -> None:
    fencer = Fencer(group, confirms=False, untouched=True)
    plane, first = await frozen_master(group, wishes={"fence_timeout_seconds": 60.0}, fencer=fencer)
    await eventually(lambda: fencer.fenced, what="the fence to be asked")
    first.thaw()
    await eventually(lambda: snapshot_of(plane).in_progress is None, what="the failover to be withdrawn")
    assert group.notes.closed == []
    assert group.master() is first


async def test_who_was_not_seen_dead_is_in_the_record_until_it_follows(group: World) -> None:
    """The reconcile plane reports the unfenced master, and may run in another operator pod or restart: so the record keeps it."""
    store, fencer = MemoryRecordStore(), Fencer(group, confirms=False)
    plane, (first, _, _) = await group.three_under(fencer=fencer, store=store)

    async def recorded() -> frozenset[int]:
        stored = await store.read(KEY)
        return stored.record.unfenced if stored is not None else frozenset()

    first.freeze()
    await eventually(lambda: group.master() is not first and record_of(plane).unfenced, what="another master")
    assert await recorded() == {first.broker_id}
    first.thaw()
    await eventually(lambda: not record_of(plane).unfenced, what="the old master to follow")
    assert first.broker_id in record_of(plane).sync_state_set
    assert await recorded() == frozenset()


async def test_a_silent_master_that_nobody_could_replace_is_left_alone_until_it_must_be_stuck(group: World) -> None:
    fencer = Fencer(group)
    plane = await group.plane(
        settings=LOOSE,
        fencer=fencer,
        no_successor_patience_seconds=2.5,
        no_successor_pause_seconds=0.05,
    )
    first = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable, what="the only broker to be master")
    first.freeze()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the silence to be noticed")
    first.thaw()
    await eventually(lambda: snapshot_of(plane).writable, what="the master to be heard again")
    assert fencer.fenced == []
    assert record_of(plane).master_epoch == 1
    first.freeze()
    await eventually(lambda: fencer.fenced == [1], what="a master silent for too long to be taken for stuck")


async def test_a_silent_master_whose_disk_goes_with_its_pod_is_never_fenced_without_a_successor(group: World) -> None:
    """The fence deletes the pod, and so had deleted the last copy of the data."""
    fencer = Fencer(group)
    plane = await group.plane(
        settings=LOOSE,
        wishes={"ephemeral": True},
        fencer=fencer,
        no_successor_patience_seconds=0.0,
        no_successor_pause_seconds=0.05,
    )
    first = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable, what="the only broker to be master")
    with capture_logs() as logs:
        first.freeze()
        await eventually(
            lambda: sum(line["event"].startswith("master silent, and no member") for line in logs) > 1,
            what="a longer silence than the patience to be waited out",
        )
    assert fencer.fenced == []
    assert record_of(plane).granted_master_id == 1


async def test_a_master_that_reconnects_within_the_grace_keeps_its_office(group: World) -> None:
    plane, (first, _, _) = await group.three_under()
    for _ in range(3):
        first.silent = True
        await first.drop_connections()
        await eventually(lambda: 1 not in snapshot_of(plane).live, what="the closed connection to be noticed")
        first.silent = False
        await eventually(lambda: 1 in snapshot_of(plane).live, what="the master to be heard again")
    await eventually(lambda: snapshot_of(plane).writable)
    assert group.notes.lost == []
    assert record_of(plane).master_epoch == 1


async def test_a_closed_connection_alone_is_fenced_like_silence(group: World) -> None:
    fencer = Fencer(group)
    _plane, (first, _, _) = await group.three_under(fencer=fencer)
    first.silent = True
    await first.drop_connections()
    incident = await group.incident()
    assert incident.trigger is Trigger.CONNECTION_CLOSED
    # A listener is there: the member got more than the grace period.
    assert (incident.detection_seconds or 0.0) > 0.3
    assert fencer.fenced == [1]


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize(
    "fences",
    [{"unconfirmed_trust": "its fence"}, {"told_fence_seconds": 3.0}],
    ids=["each pod has one", "another pod has none yet"],
)
async def test_a_closed_connection_whose_fence_is_not_confirmed_waits_for_the_fence_in_the_pod(
    group: World, monkeypatch: pytest.MonkeyPatch, fences: dict[str, Any]
) -> None:
    """A node is cut off: the closed connection shows the loss long before the heartbeat timeout, and fencing ends soon.

    The fence in the pod counts heartbeat timeout plus fence timeout from the last heartbeat, so it may kill later. The master's pod
    may have one where another pod has none: then nothing is trusted, and all the same it is waited for.
    """

    async def nothing_answers(address: str, *, deadline_seconds: float) -> None:
        raise TimeoutError(f"{address}: no answer within {deadline_seconds} s")

    monkeypatch.setattr(master_watch, "dial", nothing_answers)
    fencer = Fencer(group, confirms=False)
    times = {"heartbeat_timeout_seconds": 2.5, "fence_timeout_seconds": 0.5}
    _plane, (first, _, _) = await group.three_under(wishes={**fences, **times}, fencer=fencer)
    first.silent = True
    await first.drop_connections()
    incident = await group.incident()
    assert incident.trigger is Trigger.CONNECTION_CLOSED
    last_seconds = incident.last_sign_of_life_seconds
    assert last_seconds is not None
    assert incident.steps[Step.DECIDED] - last_seconds >= 3.0, (incident.evidence, incident.milliseconds())


async def test_a_master_whose_heartbeats_are_lost_but_who_answers_is_left_alone(group: World) -> None:
    """F14: the path from the master to the plane is cut, the data path is healthy: no broker is killed."""
    fencer = Fencer(group)
    plane, (first, _, _) = await group.three_under(fencer=fencer)
    first.asked.clear()
    first.silent = True
    await eventually(lambda: first.asked.count(907) >= 3, what="three silences that were asked about")
    assert group.notes.lost == []
    assert 1 in snapshot_of(plane).live
    assert record_of(plane).master_epoch == 1


async def test_a_terminated_container_is_certainty(group: World) -> None:
    fencer = Fencer(group)
    _plane, (first, _, _) = await group.three_under(fencer=fencer, pause_threshold_seconds=0.2)
    first.heartbeat_timeout_ms = 60_000  # long before its silence would count
    beats = first.beats
    await eventually(lambda: first.beats > beats + 2, what="its timeout to be known")
    first.freeze()  # its sockets stay open: only the container's end is known
    group.directory.report_terminated(KEY, 1, address=first.address)
    incident = await group.incident()
    assert (incident.trigger, incident.unfenced) == (Trigger.CONTAINER_TERMINATED, False)
    assert fencer.fenced == []


async def test_a_terminated_container_does_not_count_against_a_master_that_is_heard(group: World) -> None:
    """Its pod had the address of one that has ended, and the watch has not shown it yet."""
    plane, (first, _, _) = await group.serving(fencer=Fencer(group), pause_threshold_seconds=0.2)
    group.directory.report_terminated(KEY, 1, address=first.address)
    beats = first.beats
    await eventually(lambda: first.beats > beats + 20, what="heartbeats after the report")
    assert (group.notes.lost, record_of(plane).master_epoch) == ([], 1)


def test_only_a_heartbeat_that_was_made_later_ends_the_report_of_a_death() -> None:
    """One that was made before it may have waited in the socket."""
    members = MemberNotes(regular_heartbeat_seconds=2.0)
    members.reported_dead[1] = 10.0
    for now_seconds, left in ((10.0, {1}), (10.2, {1}), (10.25, set())):
        members.lives(2, now_seconds)
        members.lives(1, now_seconds)
        assert members.reported_dead.keys() == left


@pytest.mark.parametrize("beats_after", [0, 20], ids=["no heartbeat came since", "heartbeats came since"])
async def test_a_death_that_is_reported_late_begins_no_failover(group: World, beats_after: int) -> None:
    """The watch was away while the container started again: each pause of a second began and gave up eighty failovers."""
    plane, (first, _, _) = await group.serving(fencer=Fencer(group), pause_threshold_seconds=0.2)
    first.heartbeat_timeout_ms = 5000
    inner, beats = group_of(plane), first.beats
    await eventually(lambda: first.beats > beats + 2, what="its timeout to be known")
    first.silent = beats_after == 0
    for callback in group.directory.on_gone:
        callback(KEY, 1)
    beats = first.beats
    await eventually(lambda: first.beats >= beats + beats_after, what="heartbeats after the report")
    first.silent = True
    await eventually(lambda: inner.silent_for_seconds(1) > 2.0, what="a pause that is no silence yet")
    assert group.notes.lost == []
    assert 1 in snapshot_of(plane).live
    assert bool(inner.members.reported_dead) == (beats_after == 0), "a process that is dead sends none"


async def test_without_a_member_in_sync_nobody_is_elected_until_one_comes_back(group: World) -> None:
    """Its own election ends the outage."""
    plane = await group.plane(settings=LOOSE, incident_deadline_seconds=60.0)
    first, second = await group.broker(), await group.broker()
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2}, what="both in sync")
    second.linked.clear()
    first.linked.clear()
    await first.propose_set()
    await first.kill()
    lost = await group.incident()
    assert lost.outcome is Outcome.NO_ELIGIBLE_REPLICA
    record = record_of(plane)
    assert (record.master_broker_id, record.master_epoch, record.sync_state_set) == (None, 2, frozenset({1}))
    again = await first.restarted()
    await eventually(lambda: again.is_master, what="the only member of the set to be master again")
    assert again.epoch == 3  # one epoch for the loss and one for the return, however many attempts there were
    await eventually(lambda: len(group.notes.closed) > 1, what="the end of the outage")
    incident = group.notes.closed[1]
    assert (incident.trigger, incident.outcome) == (Trigger.MASTERLESS, Outcome.COMPLETED)
    assert list(incident.milliseconds())[-2:] == ["roleChanged", "inSync"]
    assert incident.last_sign_of_life_seconds == max(lost.steps.values()), "the same outage continues"


async def test_nobody_is_elected_for_a_group_that_is_being_deleted(group: World) -> None:
    plane, (first, _, third) = await group.three_under()
    group.directory.wish(deleting=True)
    await first.kill()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the death to be noticed")
    await third.kill()
    await eventually(lambda: set(snapshot_of(plane).live) == {2}, what="the next death to be noticed")
    assert group.notes.lost == []
    assert record_of(plane).master_epoch == 1


async def test_fences_hear_that_a_whole_group_stops(client: RemotingClient, group: World) -> None:
    """No member can be elected: the preStop hook of the master has nothing to wait for."""
    plane, _ = await group.three_under()

    for stops in (False, True, False):
        group.directory.wish(deleting=stops)
        question = controller_question(KEY.name)
        answer = await client.invoke(plane.address, question, timeout_seconds=5)
        heard = told_by(answer, KEY.name, Address.parse(group.brokers[1].address, "address"))
        assert heard is not None
        assert (heard.we_are_master, heard.stops) == (True, stops)


async def test_a_restarted_master_gets_a_new_epoch(group: World) -> None:
    """Safety rule 6: no process writes other bytes under an epoch that a dead process wrote under."""
    await group.plane(settings=LOOSE)
    first = await group.broker()
    again = await first.restarted()
    await eventually(lambda: again.is_master)
    assert again.epoch > first.epoch


async def test_a_new_process_whose_registration_failed_is_not_told_its_old_epoch(group: World) -> None:
    """Rule 6, while the API is away: the plane that took the 1003 in vain told the new process the epoch of the dead one, and
    another plane, which took its next 1003, elected a second master (seed 3010 of `make simulate`).
    """
    store = RefusingStore(elections_alone=False)
    plane = await group.plane(store, settings=LOOSE)
    broker = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    store.refuses = True
    broker.asked.clear()
    assert (await broker.ask_to_register()).code == ResponseCode.SYSTEM_ERROR
    for _ in range(20):  # several looks of the keeper: it told the old epoch in the first of them
        await asyncio.sleep(plane._settings.keeper_poll_seconds)
    assert RequestCode.NOTIFY_BROKER_ROLE_CHANGED not in broker.asked
    store.refuses = False
    assert (await broker.ask_to_register()).code == 0
    await eventually(lambda: broker.is_master and broker.epoch == 2, what="the new process to be elected")


async def test_a_fresh_plane_elects_nobody_before_it_could_have_heard_the_master(group: World) -> None:
    """Invariant I17: "not heard yet" is not "dead"."""
    store = MemoryRecordStore()
    plane, (first, second, third) = await group.three_under(store)
    await plane.stop()
    first.silent = True
    fresh = await group.plane(store)
    await eventually(lambda: (now := fresh.snapshot(KEY)) and set(now.live) == {2, 3}, what="the slaves first")
    first.silent = False
    await eventually(lambda: set(snapshot_of(fresh).live) == {1, 2, 3}, what="then the master")
    await eventually(lambda: snapshot_of(fresh).writable)
    assert group.notes.lost == []
    assert record_of(fresh).master_epoch == 1
    assert {second.epoch, third.epoch} == {1}


async def test_a_fresh_plane_replaces_a_master_that_is_never_heard(group: World) -> None:
    store = MemoryRecordStore()
    plane, (first, _, _) = await group.three_under(store)
    await plane.stop()
    await first.kill()
    await group.plane(store)
    assert (await group.incident()).trigger is Trigger.CONNECTION_REFUSED
    assert group.master().broker_id in (2, 3)


async def test_a_fresh_plane_elects_nobody_before_it_could_have_heard_all_who_could_lead(group: World) -> None:
    """The master is proven dead. A member not heard yet after a plane's start is not, and may be the better candidate."""
    store = MemoryRecordStore()
    plane, (first, second, third) = await group.three_under(store)
    await plane.stop()
    await first.kill()
    group.directory.report_terminated(KEY, 1, address=first.address)
    third.max_offset, second.silent, third.silent = 100, True, True
    fresh = await group.plane(store, directory=group.directory)
    second.silent = False
    await eventually(lambda: (now := fresh.snapshot(KEY)) and set(now.live) == {2}, what="one slave first")
    await eventually(lambda: snapshot_of(fresh).heartbeat_age_seconds[2] > 0.02, what="the tick to look at it")
    third.silent = False
    incident = await group.incident()
    assert (incident.from_broker_id, incident.to_broker_id) == (1, 3)
    assert record_of(fresh).master_epoch == 2


async def test_our_own_pause_is_nobodys_death(group: World) -> None:
    """F20, I20: the event loop stalls for longer than the heartbeat timeout; no master is replaced."""
    plane, _ = await group.three_under(pause_threshold_seconds=0.15, heartbeat_timeout_seconds=0.3)
    time.sleep(0.8)  # noqa: ASYNC251 - the pause
    await eventually(lambda: snapshot_of(plane).writable)
    await eventually(lambda: all(age < 0.1 for age in snapshot_of(plane).heartbeat_age_seconds.values()))
    assert group.notes.lost == []
    assert record_of(plane).master_epoch == 1


async def test_an_election_by_a_broker_waits_for_the_masters_death_to_be_established(group: World) -> None:
    """A slave's ElectMaster must not replace a silent master that has not been fenced."""
    fencer = Fencer(group)
    plane, (first, second, _) = await group.three_under(fencer=fencer)
    first.freeze()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the silence to be noticed")
    answer = await second.ask(1002, brokerId=2, designateElect="false")
    assert answer.code == 2011
    assert fencer.fenced == [1]
    assert (answer.ext_fields or {})["masterEpoch"] == "2"


async def test_an_owner_may_have_a_lost_master_waited_for(group: World) -> None:
    """CNPG #6091: failoverDelay never ended. The plane waits for the master's return, then elects among all live members."""
    plane, (first, second, third) = await group.three_under(
        wishes={"failover_delay_seconds": 1000.0}, no_successor_pause_seconds=0.02
    )
    await first.kill()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="its death to be noticed")
    await asyncio.sleep(0.3)
    assert record_of(plane).master_epoch == 1
    back = await first.restarted()
    await eventually(lambda: any(one.is_master for one in (back, second, third)), what="a master again")
    assert record_of(plane).master_epoch == 2


async def test_a_master_that_takes_its_role_late_ends_its_incident_then(group: World) -> None:
    """A long outage is one complete incident: availability is computed from the incident log and the counter."""
    told = asyncio.Event()
    plane, (first, *others) = await group.three_under(role_change_deadline_seconds=0.2, incident_deadline_seconds=60.0)
    for each in others:
        each.role_change_waits = told
    await first.kill()
    incident = await eventually(lambda: snapshot_of(plane).last_failover, what="the election")
    assert incident.outcome is Outcome.INCOMPLETE
    assert not snapshot_of(plane).writable
    assert not group.notes.closed
    told.set()
    closed = await group.incident()
    assert closed is incident
    assert closed.outcome is Outcome.COMPLETED
    assert list(incident.milliseconds())[-2:] == ["roleChanged", "inSync"]


async def test_a_group_whose_members_in_sync_are_dead_takes_no_writes(group: World) -> None:
    """They keep their seats, as the set never shrinks below the minimum. Without a lost master there is no incident."""
    plane, (_, *others) = await group.serving()
    for each in others:
        each.freeze()
    await eventually(lambda: not snapshot_of(plane).writable, what="the silence to be noticed")
    assert record_of(plane).sync_state_set == {1, 2, 3}
    assert record_of(plane).master_broker_id == 1
    others[0].thaw()
    await eventually(lambda: snapshot_of(plane).writable, what="two disks again")
    assert not group.notes.closed
