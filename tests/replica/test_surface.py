"""The start of a process, and what a replica answers to operators and clients, with the codes that refuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.broker_protocol import EpochCacheBody
from rocketmq_remoting.client_protocol import BatchedMessage, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.message_record import decode_record, decode_records
from rocketmq_remoting.serialization import decode_properties
from rocketmq_replica.clients import read_requests
from rocketmq_replica.clients.consumers import EXPIRY_SECONDS, QueueLocks
from tests.replica.support import (
    FakeController,
    Lab,
    RunningReplica,
    configuration_text,
    fresh_address,
    run_process,
    send_fields,
)
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from tests.support.fake_name_server import FakeNameServer


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("a damaged identity", "found 'garbage'"),  # when the replica registers, in a task of its own
        ("another process", "another process uses this store"),  # the lock is Java's, which is per process
        ("a taken port", "cannot start: "),
        ("controllerAddr=nowhere", "controllerAddr=nowhere: expected host:port"),
    ],
)
async def test_a_process_that_cannot_start_ends_with_1_and_says_why(
    lab: Lab, tmp_path: Path, found: str, said: str
) -> None:
    address, store, config = fresh_address(), tmp_path / "r1", tmp_path / "broker.conf"
    text = configuration_text(store, lab.controller.address, address)
    async with contextlib.AsyncExitStack() as held:
        match found:
            case "a damaged identity":
                store.mkdir()
                (store / "brokerIdentity").write_text("garbage")
            case "another process":
                await lab.master()
            case "a taken port":
                await held.enter_async_context(await asyncio.start_server(lambda *_: None, address, 10911))
            case wrong:
                text += f"\n{wrong}"
        config.write_text(text)
        code, errors = await run_process(config)
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


async def test_a_process_ends_with_0_on_sigterm_and_keeps_its_log(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    address = fresh_address()
    config.write_text(configuration_text(tmp_path / "store", lab.controller.address, address))
    sent: list[asyncio.Task[RemotingCommand]] = []

    def one_message_was_stored() -> bool:
        if lab.controller.master_id is not None and not sent:
            sent.append(asyncio.create_task(lab.client.send(f"{address}:10911", b"kept")))
        return bool(sent) and sent[0].done()

    code, errors = await run_process(config, one_message_was_stored)
    assert code == 0, errors
    assert sent[0].result().code == ResponseCode.SUCCESS
    assert "stopped, log ends at" in errors
    assert b"kept" in (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()


async def test_after_a_pause_nothing_is_acknowledged_until_a_controller_confirms(lab: Lab) -> None:
    one, _two = await lab.pair(slaveTimeout=10_000)
    lab.controller.refused[RequestCode.CONTROLLER_GET_REPLICA_INFO] = ResponseCode.SYSTEM_ERROR
    one.term._last_look_seconds -= 100.0  # as if the process had stood still
    send = asyncio.create_task(lab.client.send(one, b"after the thaw"))
    await eventually(lambda: one.term.waiting_count == 1)
    await eventually(lambda: one.term.sync_state.links[2].ack_offset == one.process.store.max_offset)
    await lab.controller.asked_again(RequestCode.CONTROLLER_GET_REPLICA_INFO, 2)
    assert not send.done()
    lab.controller.refused.clear()
    assert (await send).code == ResponseCode.SUCCESS


async def test_a_master_whose_mastership_was_taken_is_fenced_and_asks_for_an_election(lab: Lab) -> None:
    one, _two = await lab.pair()
    lab.controller.lose_master()
    lab.controller.refused[RequestCode.CONTROLLER_ELECT_MASTER] = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    one.process.manager.poll_soon()
    await eventually(lambda: one.role == "FENCED")
    assert (await lab.client.send(one, b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    lab.controller.refused.clear()
    await eventually(lambda: lab.controller.master_id is not None)
    await eventually(lambda: one.role in ("MASTER", "SLAVE"))


async def test_the_requests_of_operators_report_the_state(lab: Lab) -> None:
    one, two = await lab.pair()
    await lab.client.send(one, b"x")
    status = await lab.client.status(one)
    assert status.master
    assert status.in_sync_slave_nums == 1
    (link,) = status.ha_connection_info
    assert (link.slave_ack_offset, link.diff, link.in_sync) == (one.process.store.max_offset, 0, True)
    status = await lab.client.status(two)
    assert not status.master
    assert status.ha_client_runtime_info.master_addr == one.process.configuration.ha_address
    before = status.ha_client_runtime_info.last_read_timestamp
    assert before > 10**12, "Unix time in milliseconds"

    async def is_read_from() -> bool:
        return (await lab.client.status(two)).ha_client_runtime_info.last_read_timestamp > before

    await eventually(is_read_from, what="the master's next keepalive")
    epochs = EpochCacheBody.decode((await lab.client.ask(two, RequestCode.GET_BROKER_EPOCH_CACHE)).body)
    assert (epochs.cluster_name, epochs.broker_name, epochs.broker_id) == ("DefaultCluster", "broker-a", 2)
    assert [(entry.epoch, entry.start_offset, entry.end_offset) for entry in epochs.epoch_list] == [(1, 0, 2**63 - 1)]
    assert epochs.max_offset == two.process.store.max_offset
    shown = decode_properties((await lab.client.ask(one, RequestCode.GET_BROKER_CONFIG)).body)
    assert (shown["brokerId"], shown["brokerRole"], shown["minInSyncReplicas"]) == ("0", "SYNC_MASTER", "1")
    shown = decode_properties((await lab.client.ask(two, RequestCode.GET_BROKER_CONFIG)).body)
    assert (shown["brokerId"], shown["brokerRole"]) == ("2", "SLAVE")
    table = (await lab.client.table(one, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert table["brokerActive"] == "true"
    assert table["commitLogMaxOffset"] == str(one.process.store.max_offset)
    topics = await lab.client.table(one, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert {"Topic", "TBW102"} <= set(topics["topicConfigTable"])
    for code in (
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    ):
        assert (await lab.client.ask(one, code)).code == ResponseCode.SUCCESS


async def test_only_live_keys_can_be_changed_and_all_of_them_or_none(lab: Lab) -> None:
    one = await lab.master()
    for body in (b"minInSyncReplicas=2\nlistenPort=1\n", b"minInSyncReplicas=2\ninSyncReplicas=x\n"):
        answer = await lab.client.ask(one, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert one.process.broker.policy.min_in_sync_replicas == 1
    assert "inSyncReplicas=x: expected a whole number" in (answer.remark or "")


async def test_bad_role_notifications_are_refused(lab: Lab) -> None:
    one = await lab.master()
    ext_fields = {"masterBrokerId": "1", "masterEpoch": "9", "masterAddress": one.address}
    answer = await lab.client.ask(one, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=ext_fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await lab.client.ask(one, RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    assert answer.code == ResponseCode.SUCCESS, "Java ignores one without a master id"
    assert one.process.broker.master.master_epoch == 1


async def test_a_batch_is_stored_message_by_message(lab: Lab) -> None:
    one = await lab.master()
    ext_fields = send_fields(queue_id=1, m="true")
    body = encode_batch([BatchedMessage(7, b"one", b"TAGS\x01red\x02"), BatchedMessage(0, b"two", b"TAGS\x01blue")])
    answer = await lab.client.ask(one, RequestCode.SEND_BATCH_MESSAGE, ext_fields=ext_fields, body=body)
    assert answer.code == ResponseCode.SUCCESS
    assert len((answer.ext_fields or {})["msgId"].split(",")) == 2
    messages = await lab.client.pull_all(one, queue_id=1)
    assert [(message.body, message.flag, message.properties["TAGS"]) for message in messages] == [
        (b"one", 7, "red"),
        (b"two", 0, "blue"),
    ]
    answer = await lab.client.pull(one, 0, queue_id=1, subscription="blue || green")
    assert b"two" in (answer.body or b"")
    assert b"one" not in (answer.body or b"")


async def test_906_moves_a_slave_to_another_ha_address(lab: Lab) -> None:
    one, two = await lab.pair()
    answer = await lab.client.ask(one, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert (answer.ext_fields or {})["masterHaAddress"] == one.process.configuration.ha_address
    answer = await lab.client.ask(two, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert not (answer.ext_fields or {}).get("masterHaAddress"), "a slave is no master"
    before = two.process.ha_client.connection
    fields = {"masterHaAddress": "127.0.0.1:1"}
    assert (await lab.client.ask(two, RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields=fields)).code == 0
    await eventually(lambda: two.process.ha_client.connection not in (None, before))
    assert two.process.ha_client.connected_address == one.process.configuration.ha_address, "the pushed one is dead"
    await eventually(lambda: lab.controller.members == {1, 2})


async def test_replicas_register_with_the_name_server(lab: Lab, name_server: FakeNameServer) -> None:
    one, two = await lab.pair(namesrvAddr=name_server.address)
    await eventually(lambda: len(name_server.registered) == 2)
    assert {addr: header.broker_id for addr, header in name_server.registered.items()} == {
        one.address: 0,
        two.address: 2,
    }
    wrapper = name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"]["stateVersion"] == 1
    assert len(wrapper["topicConfigTable"]) >= 2
    await lab.client.send(one, b"x", topic="Made_by_sending")
    await eventually(
        lambda: (
            "Made_by_sending"
            in name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]["topicConfigTable"]
        )
    )
    await lab.controller.elect(2, 1, 2)
    await eventually(
        lambda: (name_server.registered[one.address].broker_id, name_server.registered[two.address].broker_id) == (1, 0)
    )
    assert name_server.registered_bodies[two.address]["topicConfigSerializeWrapper"]["dataVersion"]["stateVersion"] == 2
    await two.stop()
    assert name_server.unregistered == [two.address]


async def test_issue_52_a_new_list_of_name_servers_needs_no_restart(lab: Lab, name_server: FakeNameServer) -> None:
    """apache/rocketmq-operator #52: the replica registers with the new NameServer at once, and reports the new list."""
    one = await lab.master(namesrvAddr="127.0.0.1:1")
    assert not name_server.registered
    code = RequestCode.UPDATE_BROKER_CONFIG
    assert (await lab.client.ask(one, code, body=f"namesrvAddr={name_server.address}\n".encode())).code == 0
    await eventually(lambda: set(name_server.registered) == {one.address})
    shown = await lab.client.ask(one, RequestCode.GET_BROKER_CONFIG)
    assert f"namesrvAddr={name_server.address}" in (shown.body or b"").decode()
    assert (await lab.client.ask(one, code, body=b"namesrvAddr=\n")).code == ResponseCode.NO_PERMISSION
    assert (await lab.client.ask(one, code, body=b"namesrvAddr=nowhere\n")).code == ResponseCode.NO_PERMISSION
    await one.stop()
    assert name_server.unregistered == [one.address]


async def test_another_list_of_controllers_needs_no_restart(lab: Lab) -> None:
    """replicaCount of the operator 1 to 2 to 1: heartbeats follow, and requests when the first one is gone."""
    one = await lab.master()
    added = FakeController()
    await added.start()
    code = RequestCode.UPDATE_BROKER_CONFIG
    both = f"{lab.controller.address};{added.address}"
    assert (await lab.client.ask(one, code, body=f"controllerAddr={both}\n".encode())).code == 0
    await eventually(lambda: 1 in added.heartbeats)
    shown = decode_properties((await lab.client.ask(one, RequestCode.GET_BROKER_CONFIG)).body)
    assert shown["controllerAddr"] == both
    assert (await lab.client.ask(one, code, body=f"controllerAddr={added.address}\n".encode())).code == 0
    facts = one.process.controller.heartbeats.facts
    await eventually(lambda: {fact.address for fact in facts()} <= {added.address, one.process.controller._leader})
    for wrong in (b"controllerAddr=\n", b"controllerAddr=nowhere\n"):
        assert (await lab.client.ask(one, code, body=wrong)).code == ResponseCode.NO_PERMISSION
    assert one.role == "MASTER"
    await added.stop()


DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "replica.md"


@pytest.fixture
async def one(lab: Lab) -> RunningReplica:
    return await lab.master(messageDelayLevel="0s")


def documented_as_unsupported() -> set[int]:
    """Every number in the middle column of the table of what is not supported."""
    table = DOCUMENT.read_text().partition("## What it does not do")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|[^|]+\|$", table, re.MULTILINE)
    return {int(number) for row in rows for number in re.findall(r"\b\d+\b", row) if "sent by" not in row}


async def test_what_the_document_calls_unsupported_is_answered_so(lab: Lab, one: RunningReplica) -> None:
    codes = documented_as_unsupported()
    assert len(codes) > 20
    others = {int(code) for code in RequestCode} - one.process.dispatcher.codes
    for code in sorted(codes | others):
        answer = await lab.client.ask(one, code, body=b"{}")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
    assert not codes & one.process.dispatcher.codes


async def test_what_the_document_calls_supported_is_what_is_handled(one: RunningReplica) -> None:
    text = DOCUMENT.read_text()
    sentence = text[text.index("Supported: ") : text.index("\n\n", text.index("Supported: "))]
    codes = {int(number) for number in re.findall(r"\b\d+\b", sentence)}
    codes |= set(range(28, 37))
    assert codes == {int(code) for code in one.process.dispatcher.codes}


@pytest.mark.parametrize(
    ("properties", "sys_flag", "remark"),
    [("DELAY\x013\x02", 0, "DELAY=3"), ("a\x01b\x02TIMER_DELIVER_MS\x0199\x02", 0, "TIMER_DELIVER_MS=99"),
     ("TRAN_MSG\x01true\x02", 0, "transactional"), ("", 4, "transactional")],
)  # fmt: skip
async def test_a_message_that_would_have_to_be_kept_back_is_refused(
    lab: Lab, one: RunningReplica, properties: str, sys_flag: int, remark: str
) -> None:
    fields = send_fields(properties=properties, f=str(sys_flag))
    end = one.process.store.max_offset
    answer = await lab.client.ask(one, RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"x")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert remark in (answer.remark or "")
    assert one.process.store.max_offset == end
    harmless = "MY_DELAY\x013\x02DELAY\x010\x02"
    await lab.client.store(one, b"x", properties=harmless)


async def test_a_message_is_viewed_by_its_offset(
    lab: Lab, one: RunningReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.client.send(one, b"first")
    await lab.client.send(one, b"second")
    place = one.process.store.queues.queue("Topic", 0).locate(1)
    assert place is not None

    async def view(offset: object) -> RemotingCommand:
        return await lab.client.ask(one, RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(offset)})

    answer = await view(place[0])
    assert decode_record(answer.body or b"").body == b"second"
    for offset in (place[0] + 1, -1, one.process.store.max_offset, "x"):
        assert (await view(offset)).code == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(one.process.broker, "settle", lambda: None)  # a tick would raise it again
    one.process.store.confirm_offset = place[0]
    assert (await view(place[0])).code == ResponseCode.SYSTEM_ERROR, "consumers do not see it yet either"


async def test_the_earliest_store_time(lab: Lab, one: RunningReplica) -> None:
    fields = {"topic": "Topic", "queueId": "0"}
    answer = await lab.client.ask(one, RequestCode.GET_EARLIEST_MSG_STORETIME, ext_fields=fields)
    assert answer.ext_fields == {"timestamp": "-1"}
    await lab.client.send(one, b"x")
    stored = (await lab.client.pull_all(one))[0].store_timestamp_ms
    answer = await lab.client.ask(one, RequestCode.GET_EARLIEST_MSG_STORETIME, ext_fields=fields)
    assert answer.ext_fields == {"timestamp": str(stored)}


async def test_messages_are_found_by_key(lab: Lab) -> None:
    one = await lab.master()
    for number in range(10):
        properties = f"KEYS\x01even{number % 2} k{number}\x02UNIQ_KEY\x01U{number}\x02"
        answer = await lab.client.send(one, b"%d" % number, queue_id=number % 4, properties=properties)
        assert answer.code == ResponseCode.SUCCESS

    async def found(key: str, **more: str) -> tuple[int, set[bytes]]:
        fields = {"topic": "Topic", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
        answer = await lab.client.ask(one, RequestCode.QUERY_MESSAGE, ext_fields=fields | more)
        return answer.code, {each.body for each in decode_records(answer.body or b"")}

    assert await found("k7") == (0, {b"7"})
    assert await found("even0") == (0, {b"0", b"2", b"4", b"6", b"8"})
    assert await found("U3", _UNIQUE_KEY_QUERY="true") == (0, {b"3"})
    assert (await found("even1", maxNum="2"))[0] == 0
    assert len((await found("even1", maxNum="2"))[1]) == 2
    assert await found("U3") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert await found("k7", endTimestamp="1") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert await found("k7", topic="Other") == (ResponseCode.QUERY_NOT_FOUND, set())
    assert (await found(""))[0] == ResponseCode.SYSTEM_ERROR


async def test_a_query_that_would_read_too_much_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_requests, "MOST_READ", 2)
    one = await lab.master()
    for _ in range(3):
        await lab.client.send(one, b"x")
    fields = {"topic": "Topic", "key": "k", "maxNum": "1"}
    answer = await lab.client.ask(one, RequestCode.QUERY_MESSAGE, ext_fields=fields)
    assert (answer.code, answer.remark) == (1, "more than 2 messages of Topic in this time: ask for a shorter one")


async def test_what_was_not_consumed_comes_again_and_ends_with_the_dead_letters(lab: Lab, one: RunningReplica) -> None:
    await lab.client.store(one, b"hard to consume", properties="k\x01v\x02", h="5", g="77")
    first = (await lab.client.pull_all(one))[0]
    assert (await lab.client.send_back(one, first.physical_offset)).code == ResponseCode.SUCCESS
    again = (await eventually(lambda: lab.client.pull_all(one, topic="%RETRY%CG")))[0]
    assert (again.body, again.reconsume_times, again.flag, again.born_timestamp_ms) == (first.body, 1, 5, 77)
    assert again.properties["RETRY_TOPIC"] == "Topic"
    assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
    assert (await lab.client.send_back(one, again.physical_offset, maxReconsumeTimes="1")).code == ResponseCode.SUCCESS
    dead = (await lab.client.pull_all(one, topic="%DLQ%CG"))[0]
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (first.body, "Topic")
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == first.message_id
    assert (await lab.client.send_back(one, first.physical_offset, level=-1)).code == ResponseCode.SUCCESS
    assert len(await lab.client.pull_all(one, topic="%DLQ%CG")) == 2


async def test_a_group_says_how_often_a_message_comes_again(lab: Lab, one: RunningReplica) -> None:
    """A Java master's table, copied by a slave that is master now."""
    await lab.client.send(one, b"hard to consume")
    first = (await lab.client.pull_all(one))[0]
    groups = one.process.metadata._metadata.groups
    groups.replace_all({"subscriptionGroupTable": {"CG": {"groupName": "CG", "retryMaxTimes": 1}}})
    assert (await lab.client.send_back(one, first.physical_offset)).code == ResponseCode.SUCCESS
    again = (await eventually(lambda: lab.client.pull_all(one, topic="%RETRY%CG")))[0]
    assert (await lab.client.send_back(one, again.physical_offset)).code == ResponseCode.SUCCESS
    assert len(await lab.client.pull_all(one, topic="%RETRY%CG")) == 1
    assert len(await lab.client.pull_all(one, topic="%DLQ%CG")) == 1


async def test_sending_back_is_checked(lab: Lab, one: RunningReplica) -> None:
    await lab.client.send(one, b"x")
    for offset, fields in ((1, {}), (1 << 40, {}), (0, {"group": ""}), (0, {"group": "no such#name"})):
        answer = await lab.client.send_back(one, offset, **fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark


def test_queue_locks_are_exclusive_and_expire() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "T", 0, "a", now_seconds=0.0)
    assert locks.lock("G", "T", 0, "a", now_seconds=1.0)
    assert not locks.lock("G", "T", 0, "b", now_seconds=1.0 + EXPIRY_SECONDS)
    assert locks.lock("other", "T", 0, "b", now_seconds=1.0)
    assert locks.lock("G", "T", 0, "b", now_seconds=1.1 + EXPIRY_SECONDS)
    locks.unlock("G", "T", 0, "a")
    assert not locks.lock("G", "T", 0, "a", now_seconds=2.0 + EXPIRY_SECONDS), "only the holder can give it back"
    locks.unlock("G", "T", 0, "b")
    assert locks.lock("G", "T", 0, "a", now_seconds=2.0 + EXPIRY_SECONDS)


def test_locks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_replica.clients.consumers.MOST_LOCKS", 3)
    locks = QueueLocks()
    assert all(locks.lock("G", "made up", number, "a", now_seconds=0.0) for number in range(3))
    assert not locks.lock("G", "T", 0, "b", now_seconds=1.0)
    assert locks.lock("G", "made up", 0, "a", now_seconds=1.0), "the holder of a lock may go on"
    assert locks.lock("G", "T", 0, "b", now_seconds=1.0 + EXPIRY_SECONDS), "the others have expired"


async def test_ordered_consumers_lock_their_queues(lab: Lab, one: RunningReplica) -> None:
    queues: list[dict[str, Any]] = [{"topic": "T", "brokerName": "broker-a", "queueId": number} for number in (0, 1)]

    async def ask(code: int, client_id: str, wanted: list[dict[str, Any]]) -> RemotingCommand:
        body = {"consumerGroup": "CG", "clientId": client_id, "mqSet": wanted}
        return await lab.client.ask(one, code, body=json.dumps(body).encode())

    async def locked(client_id: str, wanted: list[dict[str, Any]]) -> list[int]:
        answer = await ask(RequestCode.LOCK_BATCH_MQ, client_id, wanted)
        assert answer.code == ResponseCode.SUCCESS
        return [queue["queueId"] for queue in json.loads(answer.body or b"")["lockOKMQSet"]]

    assert await locked("a", queues[:1]) == [0]
    assert await locked("b", queues) == [1]
    assert (await ask(RequestCode.UNLOCK_BATCH_MQ, "a", queues)).code == ResponseCode.SUCCESS
    assert await locked("b", queues) == [0, 1]
    assert (await lab.client.ask(one, RequestCode.LOCK_BATCH_MQ, body=b"[]")).code == ResponseCode.SYSTEM_ERROR
