"""What changes a replica's role, which connections count as slaves (upstream #1893, #3015), and how a replica leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.controller import client as controller_client
from rocketmq_replica.controller import roles
from rocketmq_replica.ha.frames import Acknowledgement, Handshake
from rocketmq_replica.role_change import GroupInfo, MasterSeen, RoleChange, judge_role
from tests.replica.support import Client, FakeController, Lab, RunningReplica, fresh_address, numbered
from tests.support.waiting import eventually

ME, OTHER, THIRD = 1, 2, 3
HERE, THERE, ELSEWHERE = "h:1", "h:2", "h:3"
OTHER_TERMS = MasterSeen(5, OTHER, THERE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Epoch 5 is known, with the other as master, unless said otherwise."""

    epoch: int = 6
    master: int | None = OTHER
    address: str = THERE
    known: MasterSeen = OTHER_TERMS
    last_log_epoch: int = 5
    last_log_epoch_is_empty: bool = False
    is_master: bool = False
    is_slave: bool = True
    linked: bool = True

    def judge(self) -> RoleChange:
        return judge_role(
            GroupInfo(self.epoch, self.master, self.address, frozenset({OTHER}), 1),
            known=self.known, own_id=ME, last_log_epoch=self.last_log_epoch,
            last_log_epoch_is_empty=self.last_log_epoch_is_empty, is_master=self.is_master, is_slave=self.is_slave,
            linked=self.linked,
        )  # fmt: skip


NEW_EPOCH = {RoleChange.BEGIN_TERM, RoleChange.CONTINUE_TERM, RoleChange.FOLLOW, RoleChange.FOLLOW_ON}
MASTER: dict[str, Any] = {"known": MasterSeen(5, ME, HERE), "is_master": True, "is_slave": False, "linked": False}


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (Case(master=None, address=""), RoleChange.NOTHING),
        (Case(address=""), RoleChange.NOTHING),
        (Case(epoch=5), RoleChange.NOTHING),
        (Case(epoch=5, master=THIRD, address=ELSEWHERE), RoleChange.NOTHING),
        (Case(epoch=4, master=ME, address=HERE), RoleChange.NOTHING),
        (Case(epoch=5, address=ELSEWHERE, linked=False), RoleChange.MASTER_MOVED),
        (Case(epoch=5, address=ELSEWHERE, linked=True), RoleChange.NOTHING),
        (Case(epoch=4, address=ELSEWHERE, linked=False), RoleChange.NOTHING),
        (Case(epoch=5, master=THIRD, address=ELSEWHERE, linked=False), RoleChange.NOTHING),
        (Case(epoch=6), RoleChange.FOLLOW_ON),
        (Case(epoch=6, address=ELSEWHERE), RoleChange.FOLLOW),
        (Case(epoch=6, master=THIRD, address=ELSEWHERE), RoleChange.FOLLOW),
        (Case(epoch=6, is_slave=False, linked=False), RoleChange.FOLLOW),
        (Case(epoch=6, master=ME, address=HERE), RoleChange.BEGIN_TERM),
        (Case(epoch=6, master=ME, address=HERE, **MASTER), RoleChange.CONTINUE_TERM),
        (Case(epoch=6, master=ME, address=HERE, **MASTER | {"is_master": False}), RoleChange.BEGIN_TERM),
        (Case(epoch=6, **MASTER), RoleChange.FOLLOW),
        (Case(epoch=5, master=ME, address=HERE, **MASTER), RoleChange.NOTHING),
        (Case(epoch=6, last_log_epoch=7), RoleChange.WENT_BACK),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=7), RoleChange.WENT_BACK),
        (Case(epoch=7, last_log_epoch=7), RoleChange.FOLLOW_ON),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=6), RoleChange.TERM_OF_ANOTHER_PROCESS),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=6, last_log_epoch_is_empty=True), RoleChange.BEGIN_TERM),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=6, **MASTER), RoleChange.CONTINUE_TERM),
        (Case(epoch=1, known=MasterSeen(), last_log_epoch=-1, is_slave=False, linked=False), RoleChange.FOLLOW),
    ],
)
def test_each_statement_of_a_controller(case: Case, change: RoleChange) -> None:
    assert case.judge() is change


CASES = st.builds(
    Case, epoch=st.integers(0, 8), master=st.sampled_from([None, ME, OTHER, THIRD]),
    address=st.sampled_from(["", HERE, THERE, ELSEWHERE]),
    known=st.builds(MasterSeen, st.integers(0, 8), st.sampled_from([-1, ME, OTHER]), st.sampled_from([HERE, THERE])),
    last_log_epoch=st.integers(-1, 8), is_master=st.booleans(), is_slave=st.booleans(), linked=st.booleans(),
)  # fmt: skip


@given(CASES)
def test_only_a_higher_epoch_changes_the_role_and_none_below_the_log(case: Case) -> None:
    change = case.judge()
    if change in NEW_EPOCH:
        assert case.epoch > case.known.master_epoch
        assert case.epoch >= case.last_log_epoch
        assert case.master is not None
        assert (change in (RoleChange.BEGIN_TERM, RoleChange.CONTINUE_TERM)) == (case.master == ME)
    elif change is RoleChange.MASTER_MOVED:
        assert (case.epoch, case.master) == (case.known.master_epoch, case.known.broker_id)
        assert not case.linked


@pytest.mark.parametrize(
    "code", [None, ResponseCode.SYSTEM_ERROR, ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, ResponseCode.SUCCESS]
)
async def test_a_1001_whose_outcome_is_open_is_waited_for_until_it_is_known(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, code: ResponseCode | None
) -> None:
    """Not answered (upstream #5663), or "not decided in time", and committed: the larger set may be the one that counts."""
    monkeypatch.setattr(controller_client, "CALL_TIMEOUT_SECONDS", 0.2)
    one = await lab.master(slaveTimeout=400)
    lab.controller.silent = {RequestCode.CONTROLLER_GET_REPLICA_INFO}
    if code is None:
        lab.controller.silent |= {RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET}
    else:
        lab.controller.granted_but_answered[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = code
    two = await lab.join("r2", slaveTimeout=400)
    assert one.term.sync_state.members == {1}
    two.process.ha_client.leave()
    await eventually(lambda: not one.process.ha_server.connections)
    assert (await lab.client.send(one, b"one copy")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    lab.controller.silent.clear()
    lab.controller.granted_but_answered.clear()
    await eventually(lambda: lab.controller.members == {1})
    await eventually(lambda: one.term.sync_state.waited_for == {1})
    await lab.client.store(one, b"alone, and confirmed")


async def test_an_answer_to_a_question_from_before_the_pause_confirms_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waited in the socket's buffer, and another replica may have been elected since."""
    one = await lab.master(slaveTimeout=10_000)
    await lab.start("r2", slaveTimeout=10_000)
    await eventually(lambda: one.term.sync_state.members == {1, 2})
    manager, term = one.process.manager, one.term
    answered = asyncio.Event()
    polls: list[int] = []
    ask = manager._controller.replica_info

    async def ask_and_stand_still() -> GroupInfo:
        info = await ask()
        if not answered.is_set():
            answered.set()
            polls.append(lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO))
            lab.controller.silent = {RequestCode.CONTROLLER_GET_REPLICA_INFO}
            term._last_look_seconds -= 100.0
            one.process.broker.settle()  # an acknowledgement that was in a buffer as well
        return info

    monkeypatch.setattr(manager._controller, "replica_info", ask_and_stand_still)
    manager.poll_soon()
    await answered.wait()
    await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > polls[0])
    assert not term.trusted
    lab.controller.silent.clear()
    await eventually(lambda: term.trusted)
    await lab.client.store(one, b"after the thaw")


@pytest.mark.parametrize("jump", [9000, 2**31 - 2])
async def test_an_epoch_from_nowhere_is_obeyed_only_when_a_controller_has_it(lab: Lab, jump: int) -> None:
    """1008 is not authenticated: an epoch that no controller has would make this replica deaf to all that they say later."""
    one = await lab.master(syncBrokerMetadataPeriod=60_000)
    epoch, asked = lab.controller.master_epoch, lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    fields = {
        "masterBrokerId": "9",
        "masterEpoch": str(epoch + jump),
        "masterAddress": "127.0.0.1:1",
        "syncStateSetEpoch": "9",
    }
    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    answer = await lab.client.ask(one, code, ext_fields=fields, body=lab.controller.set_body())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"masterEpoch={epoch + jump}: expected at most" in (answer.remark or "")
    await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
    assert (one.role, one.process.broker.master.master_epoch) == ("MASTER", epoch)
    lab.controller.master_epoch += jump
    await lab.controller.notify(1)
    await eventually(lambda: one.process.broker.master.master_epoch == epoch + jump)


class Stranger:
    """A peer that claims to be a broker, and to hold all that it is sent, and more."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.received = b""
        self.closed = asyncio.Event()

    async def dial(self, one: RunningReplica, broker_id: int, *, at: str = "") -> None:
        host, _, port = (at or one.process.configuration.ha_address).rpartition(":")
        self._reader, self.writer = await asyncio.open_connection(host, int(port), local_addr=(self.host, 0))
        self.writer.write(Handshake(broker_id).encode())
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                self.received += data
        except ConnectionError:
            pass
        self.closed.set()

    async def hang_up(self) -> None:
        self.writer.close()
        await self.closed.wait()
        await self._task


@pytest.mark.parametrize("broker_id", [2, 7])
async def test_a_stranger_is_sent_nothing_and_turned_away(lab: Lab, broker_id: int) -> None:
    one, _two = await lab.pair()
    stranger = Stranger(fresh_address())
    await stranger.dial(one, broker_id)
    await stranger.closed.wait()
    assert stranger.received == b""
    assert one.term.sync_state.links.keys() == {2}
    await stranger.hang_up()


async def test_behind_services_an_id_of_the_group_has_to_do(lab: Lab) -> None:
    """Members are known by addresses that no connection comes from: a peer without an id of the group is still turned away."""
    one = await lab.master(bindAddress=(own := fresh_address()))
    await lab.start("r2", bindAddress=(other := fresh_address()))
    await eventually(lambda: lab.controller.heartbeats.keys() == {1, 2})
    assert one.process.configuration.broker_ip != own
    served = f"{own}:{one.process.configuration.ha_port}"
    stranger, slave = Stranger(fresh_address()), Stranger(other)
    await stranger.dial(one, 7, at=served)
    await stranger.closed.wait()
    assert stranger.received == b""
    await slave.dial(one, 2, at=served)
    await eventually(lambda: one.term.sync_state.links.keys() == {2})
    await stranger.hang_up()
    await slave.hang_up()


async def test_a_strangers_acknowledgement_in_a_members_name_acknowledges_nothing(lab: Lab) -> None:
    """While no controller answers it waits outside; its word would make one copy count as two."""
    one, two = await lab.pair(slaveTimeout=700)
    lab.controller.silent = {RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET}
    two.process.ha_client.leave()
    await eventually(lambda: not one.process.ha_server.connections)
    stranger = Stranger(fresh_address())
    await stranger.dial(one, 2)
    await eventually(lambda: one.process.ha_server.connections)
    send = asyncio.create_task(lab.client.send(one, b"one copy"))
    await eventually(lambda: one.term.waiting_count == 1)
    stranger.writer.write(Acknowledgement(one.process.store.max_offset).encode())
    assert (await send).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await stranger.hang_up()


async def test_a_slave_waits_outside_until_a_controller_answers(lab: Lab) -> None:
    one = await lab.master()
    lab.controller.refused[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = ResponseCode.SYSTEM_ERROR
    await lab.start("r2")
    await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA) > 2)
    assert not one.term.sync_state.links
    lab.controller.refused.clear()
    await eventually(lambda: lab.controller.members == {1, 2})


SUCCESS = ResponseCode.SUCCESS


async def test_a_master_that_is_stopped_serves_until_another_replica_is_master(lab: Lab) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await lab.client.store(one, *numbered(3))
    assert not one.task.done()
    await lab.controller.elect(2, 1)
    # Routes still name it: a new client is refused at once, and does not wait for an address that is gone.
    assert (await Client().send(one.address, b"late")).code == ResponseCode.SYSTEM_BUSY
    await asyncio.wait_for(one.task, 15)
    await lab.controller.notify(2)
    assert two.role == "MASTER"
    assert await lab.client.bodies(two) == [b"0", b"1", b"2"]


async def test_a_master_whose_slaves_leave_a_moment_before_its_notification_hands_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our operator's order: commit, slaves sent to nowhere, then 1008 for the old master."""
    monkeypatch.setattr(roles, "_UNLINKED_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    await lab.client.store(one, b"kept")
    lab.controller.silent.add(RequestCode.CONTROLLER_GET_REPLICA_INFO)  # 1004 goes on telling the old state meanwhile
    lab.controller.decide(2)
    two.process.ha_client.retire()
    await eventually(lambda: not one.process.broker.has_successors)
    one.stop_event.set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(one.task), 0.2)
    assert (await lab.controller.notify(1)).code == SUCCESS
    assert (await Client().send(one.address, b"late")).code == ResponseCode.SYSTEM_BUSY
    await asyncio.wait_for(one.task, 15)
    await lab.controller.notify(2)
    assert await lab.client.bodies(two) == [b"kept"]


def refuse_another_set(controller: FakeController) -> None:
    """The SyncStateSet stays as it is."""
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = failed


async def test_a_master_whose_members_do_not_come_back_is_not_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "_UNLINKED_SECONDS", 0.1)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    refuse_another_set(lab.controller)
    await asyncio.wait_for(two.stop(), 15)
    await asyncio.wait_for(one.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_master_that_is_elected_again_while_it_leaves_hands_over_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second in which it sent clients away it linked again, joined the set, and was elected: then it left as master."""
    monkeypatch.setattr(roles, "_SEND_AWAY_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await lab.controller.elect(2, 1, 2)
    await eventually(lambda: two.role == "MASTER")
    assert not one.process.ha_client.linked
    await lab.controller.elect(1, 1)
    await eventually(lambda: one.role == "MASTER")
    await lab.controller.notify(2)
    await eventually(lambda: one.process.broker.has_successors)
    await lab.client.store(one, b"kept")
    assert not one.task.done()
    monkeypatch.setattr(roles, "_SEND_AWAY_SECONDS", 0.0)
    await lab.controller.elect(2, 1, 2)
    await asyncio.wait_for(one.task, 15)
    assert not one.process.ha_client.linked
    assert await lab.client.bodies(two) == [b"kept"]


async def test_a_slave_that_is_stopped_acknowledges_until_it_is_left_out_of_the_set(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_LEAVE_SET_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    refuse_another_set(lab.controller)
    asked = lab.controller.requests.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
    two.stop_event.set()
    await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET) > asked)
    await lab.client.store(one, b"while the controller refuses")
    assert lab.controller.members == {1, 2}
    assert two.log == one.log
    lab.controller.refused.clear()
    await asyncio.wait_for(two.task, 10)
    assert lab.controller.members == {1}
    await lab.client.store(one, b"alone")


@pytest.mark.parametrize("why", ["the master keeps it", "no controller knows the group", "no controller comes back"])
async def test_a_slave_that_is_not_left_out_of_the_set_ends_nevertheless(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "the master keeps it":
        monkeypatch.setattr(roles, "_LEAVE_SET_SECONDS", 0.1)
    _one, two = await lab.pair(stopHandOverTimeout=200 if why == "no controller comes back" else 60_000)
    if why == "no controller comes back":
        await lab.controller.go_away()
    else:
        refuse_another_set(lab.controller)
    if why == "no controller knows the group":
        unknown = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        lab.controller.refused[RequestCode.CONTROLLER_GET_REPLICA_INFO] = unknown
    await asyncio.wait_for(two.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_learner_is_in_no_set_and_waits_for_no_controller(lab: Lab) -> None:
    await lab.master()
    learner = await lab.start("r2", asyncLearner="true", stopHandOverTimeout=60_000)
    await eventually(lambda: learner.process.ha_client.linked)
    await lab.controller.go_away()
    await asyncio.wait_for(learner.stop(), 15)
    assert lab.controller.members == {1}


async def relinked(replica: RunningReplica, before: object) -> None:
    """Wait until the slave has a new link."""
    client = replica.process.ha_client
    await eventually(lambda: client.linked and client.connection is not before)


@pytest.mark.parametrize("answered_first", [False, True], ids=["away before", "away after an answer"])
async def test_a_slave_acknowledges_until_a_controller_is_back_and_leaves_it_out(
    lab: Lab, *, answered_first: bool
) -> None:
    """The only operator was killed while a rolling update ended this pod: nothing was acknowledged until the operator was back."""
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    before = two.process.ha_client.connection
    if answered_first:
        refuse_another_set(lab.controller)
        asked = lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        two.stop_event.set()
        await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
    await lab.controller.go_away()
    two.stop_event.set()
    await relinked(two, before)
    await lab.client.store(one, *numbered(3))
    with pytest.raises(TimeoutError):  # longer than it waits for a controller that answers
        await asyncio.wait_for(asyncio.shield(two.task), 1.5 * roles._LEAVE_SET_SECONDS)
    await lab.client.store(one, b"still")
    assert (two.log, lab.controller.members) == (one.log, frozenset({1, 2}))
    lab.controller.refused.clear()
    await lab.controller.come_back()
    await asyncio.wait_for(two.task, 15)
    assert lab.controller.members == {1}
    await lab.client.store(one, b"alone")


@pytest.mark.parametrize("first", ["master", "slave"])
async def test_a_slave_whose_master_is_gone_too_waits_for_no_controller(lab: Lab, first: str) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    before = two.process.ha_client.connection
    await lab.controller.go_away()
    if first == "slave":
        two.stop_event.set()
        await relinked(two, before)
    one.task.cancel()
    await asyncio.wait([one.task])
    await asyncio.wait_for(two.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_master_without_a_successor_is_not_kept(lab: Lab) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await asyncio.wait_for(two.stop(), 15)
    await asyncio.wait_for(one.task, 15)


async def test_a_hand_over_without_an_election_ends(lab: Lab) -> None:
    one, _two = await lab.pair(stopHandOverTimeout=100)
    await asyncio.wait_for(one.stop(), 15)
