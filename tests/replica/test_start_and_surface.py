"""Start-up states, what happens when the controller does not answer, and the RPC surface of one replica."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.broker_protocol import EpochCacheBody
from rocketmq_remoting.client_protocol import BatchedMessage, encode_batch
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.serialization import decode_properties
from tests.replica.support import (
    Client,
    FakeController,
    Starter,
    configuration_text,
    eventually,
    fresh_address,
    run_process,
    send_fields,
    start_master,
    start_pair,
)
from tests.support.fake_broker import FakeGroup
from tests.support.fake_name_server import FakeNameServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand


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
    start: Starter, controller: FakeController, tmp_path: Path, found: str, said: str
) -> None:
    address, store, config = fresh_address(), tmp_path / "r1", tmp_path / "broker.conf"
    text = configuration_text(store, controller.address, address)
    async with contextlib.AsyncExitStack() as held:
        match found:
            case "a damaged identity":
                store.mkdir()
                (store / "brokerIdentity").write_text("garbage")
            case "another process":
                await start_master(start)
            case "a taken port":
                await held.enter_async_context(await asyncio.start_server(lambda *_: None, address, 10911))
            case wrong:
                text += f"\n{wrong}"
        config.write_text(text)
        code, errors = await run_process(config)
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


async def test_a_process_ends_with_0_on_sigterm_and_keeps_its_log(
    controller: FakeController, client: Client, tmp_path: Path
) -> None:
    config = tmp_path / "broker.conf"
    address = fresh_address()
    config.write_text(configuration_text(tmp_path / "store", controller.address, address))
    sent: list[asyncio.Task[RemotingCommand]] = []

    def one_message_was_stored() -> bool:
        if controller.master_id is not None and not sent:
            sent.append(asyncio.create_task(client.send(f"{address}:10911", b"kept")))
        return bool(sent) and sent[0].done()

    code, errors = await run_process(config, one_message_was_stored)
    assert code == 0, errors
    assert sent[0].result().code == ResponseCode.SUCCESS
    assert "stopped, log ends at" in errors
    assert b"kept" in (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()


async def test_after_a_pause_nothing_is_acknowledged_until_a_controller_confirms(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, _two = await start_pair(start, controller, slaveTimeout=10_000)
    controller.refused[RequestCode.CONTROLLER_GET_REPLICA_INFO] = ResponseCode.SYSTEM_ERROR
    one.term._last_look_seconds -= 100.0  # as if the process had stood still
    send = asyncio.create_task(client.send(one.address, b"after the thaw"))
    await eventually(lambda: one.term.waiting_count == 1)
    await eventually(lambda: one.term.sync_state.links[2].ack_offset == one.process.store.max_offset)
    polls = controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    await eventually(lambda: controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > polls + 1)
    assert not send.done()
    controller.refused.clear()
    assert (await send).code == ResponseCode.SUCCESS


async def test_a_master_whose_mastership_was_taken_is_fenced_and_asks_for_an_election(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, _two = await start_pair(start, controller)
    controller.lose_master()
    controller.refused[RequestCode.CONTROLLER_ELECT_MASTER] = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    one.process.manager.poll_soon()
    await eventually(lambda: one.role == "FENCED")
    assert (await client.send(one.address, b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    controller.refused.clear()
    await eventually(lambda: controller.master_id is not None)
    await eventually(lambda: one.role in ("MASTER", "SLAVE"))


async def test_the_ops_requests_tell_what_is(start: Starter, controller: FakeController, client: Client) -> None:
    one, two = await start_pair(start, controller)
    await client.send(one.address, b"x")
    status = await client.status(one.address)
    assert status.master
    assert status.in_sync_slave_nums == 1
    (link,) = status.ha_connection_info
    assert (link.slave_ack_offset, link.diff, link.in_sync) == (one.process.store.max_offset, 0, True)
    status = await client.status(two.address)
    assert not status.master
    assert status.ha_client_runtime_info.master_addr == one.process.configuration.ha_address
    epochs = EpochCacheBody.decode((await client.ask(two.address, RequestCode.GET_BROKER_EPOCH_CACHE)).body)
    assert (epochs.cluster_name, epochs.broker_name, epochs.broker_id) == ("DefaultCluster", "broker-a", 2)
    assert [(entry.epoch, entry.start_offset, entry.end_offset) for entry in epochs.epoch_list] == [(1, 0, 2**63 - 1)]
    assert epochs.max_offset == two.process.store.max_offset
    shown = decode_properties((await client.ask(one.address, RequestCode.GET_BROKER_CONFIG)).body)
    assert (shown["brokerId"], shown["brokerRole"], shown["minInSyncReplicas"]) == ("0", "SYNC_MASTER", "1")
    shown = decode_properties((await client.ask(two.address, RequestCode.GET_BROKER_CONFIG)).body)
    assert (shown["brokerId"], shown["brokerRole"]) == ("2", "SLAVE")
    table = (await client.table(one.address, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert table["brokerActive"] == "true"
    assert table["commitLogMaxOffset"] == str(one.process.store.max_offset)
    topics = await client.table(one.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert {"Topic", "TBW102"} <= set(topics["topicConfigTable"])
    for code in (
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    ):
        assert (await client.ask(one.address, code)).code == ResponseCode.SUCCESS


async def test_only_live_keys_can_be_changed_and_all_of_them_or_none(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one = await start_master(start)
    for body in (b"minInSyncReplicas=2\nlistenPort=1\n", b"minInSyncReplicas=2\ninSyncReplicas=x\n"):
        answer = await client.ask(one.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert one.process.broker.policy.min_in_sync_replicas == 1
    assert "inSyncReplicas=x: expected a whole number" in (answer.remark or "")


async def test_bad_role_notifications_are_refused(start: Starter, controller: FakeController, client: Client) -> None:
    one = await start_master(start)
    ext_fields = {"masterBrokerId": "1", "masterEpoch": "9", "masterAddress": one.address}
    answer = await client.ask(one.address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=ext_fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await client.ask(one.address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    assert answer.code == ResponseCode.SUCCESS, "Java ignores one without a master id"
    assert one.process.broker.master.master_epoch == 1


async def test_a_batch_is_stored_message_by_message(start: Starter, controller: FakeController, client: Client) -> None:
    one = await start_master(start)
    ext_fields = send_fields(queue_id=1, m="true")
    body = encode_batch([BatchedMessage(7, b"one", b"TAGS\x01red\x02"), BatchedMessage(0, b"two", b"TAGS\x01blue")])
    answer = await client.ask(one.address, RequestCode.SEND_BATCH_MESSAGE, ext_fields=ext_fields, body=body)
    assert answer.code == ResponseCode.SUCCESS
    assert len((answer.ext_fields or {})["msgId"].split(",")) == 2
    messages = await client.pull_all(one.address, queue_id=1)
    assert [(message.body, message.flag, message.properties["TAGS"]) for message in messages] == [
        (b"one", 7, "red"),
        (b"two", 0, "blue"),
    ]
    answer = await client.pull(one.address, 0, queue_id=1, subscription="blue || green")
    assert b"two" in (answer.body or b"")
    assert b"one" not in (answer.body or b"")


async def test_906_moves_a_slave_to_another_ha_address(
    start: Starter, controller: FakeController, client: Client
) -> None:
    one, two = await start_pair(start, controller)
    answer = await client.ask(one.address, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert (answer.ext_fields or {})["masterHaAddress"] == one.process.configuration.ha_address
    answer = await client.ask(two.address, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert not (answer.ext_fields or {}).get("masterHaAddress"), "a slave is no master"
    before = two.process.ha_client.connection
    fields = {"masterHaAddress": "127.0.0.1:1"}
    assert (await client.ask(two.address, RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields=fields)).code == 0
    await eventually(lambda: two.process.ha_client.connection not in (None, before))
    assert two.process.ha_client.connected_address == one.process.configuration.ha_address, "the pushed one is dead"
    await eventually(lambda: controller.members == {1, 2})


@pytest.fixture
async def name_server() -> AsyncIterator[FakeNameServer]:
    fake = FakeNameServer(FakeGroup())
    await fake.start()
    yield fake
    await fake.stop()


async def test_replicas_register_with_the_name_server(
    start: Starter, controller: FakeController, client: Client, name_server: FakeNameServer
) -> None:
    one, two = await start_pair(start, controller, namesrvAddr=name_server.address)
    await eventually(lambda: len(name_server.registered) == 2)
    assert {addr: header.broker_id for addr, header in name_server.registered.items()} == {
        one.address: 0,
        two.address: 2,
    }
    wrapper = name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"]["stateVersion"] == 1
    assert len(wrapper["topicConfigTable"]) >= 2
    await client.send(one.address, b"x", topic="Made_by_sending")
    await eventually(
        lambda: (
            "Made_by_sending"
            in name_server.registered_bodies[one.address]["topicConfigSerializeWrapper"]["topicConfigTable"]
        )
    )
    controller.decide(2)
    for broker_id in (1, 2):
        await controller.notify(broker_id)
    await eventually(
        lambda: (name_server.registered[one.address].broker_id, name_server.registered[two.address].broker_id) == (1, 0)
    )
    assert name_server.registered_bodies[two.address]["topicConfigSerializeWrapper"]["dataVersion"]["stateVersion"] == 2
    await two.stop()
    assert name_server.unregistered == [two.address]


async def test_issue_52_a_new_list_of_name_servers_needs_no_restart(
    start: Starter, controller: FakeController, client: Client, name_server: FakeNameServer
) -> None:
    """apache/rocketmq-operator #52: the replica is at the new NameServer at once, and says what it was told."""
    one = await start_master(start, namesrvAddr="127.0.0.1:1")
    assert not name_server.registered
    code = RequestCode.UPDATE_BROKER_CONFIG
    assert (await client.ask(one.address, code, body=f"namesrvAddr={name_server.address}\n".encode())).code == 0
    await eventually(lambda: set(name_server.registered) == {one.address})
    shown = await client.ask(one.address, RequestCode.GET_BROKER_CONFIG)
    assert f"namesrvAddr={name_server.address}" in (shown.body or b"").decode()
    assert (await client.ask(one.address, code, body=b"namesrvAddr=\n")).code == ResponseCode.NO_PERMISSION
    assert (await client.ask(one.address, code, body=b"namesrvAddr=nowhere\n")).code == ResponseCode.NO_PERMISSION
    await one.stop()
    assert name_server.unregistered == [one.address]


async def test_another_list_of_controllers_needs_no_restart(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """replicaCount of the operator 1 to 2 to 1: heartbeats follow, and requests when the first one is gone."""
    one = await start_master(start)
    added = FakeController()
    await added.start()
    code = RequestCode.UPDATE_BROKER_CONFIG
    both = f"{controller.address};{added.address}"
    assert (await client.ask(one.address, code, body=f"controllerAddr={both}\n".encode())).code == 0
    await eventually(lambda: 1 in added.heartbeats)
    shown = decode_properties((await client.ask(one.address, RequestCode.GET_BROKER_CONFIG)).body)
    assert shown["controllerAddr"] == both
    assert (await client.ask(one.address, code, body=f"controllerAddr={added.address}\n".encode())).code == 0
    facts = one.process.controller.heartbeats.facts
    await eventually(lambda: {fact.address for fact in facts()} <= {added.address, one.process.controller._leader})
    for wrong in (b"controllerAddr=\n", b"controllerAddr=nowhere\n"):
        assert (await client.ask(one.address, code, body=wrong)).code == ResponseCode.NO_PERMISSION
    assert one.role == "MASTER"
    await added.stop()


def test_the_import_is_light() -> None:
    """Start-up time is failover time: nothing of the operator's libraries comes along."""
    code = (
        "import sys, rocketmq_replica.process;"
        "print([name for name in ('kopf', 'kubernetes', 'aiohttp', 'typer', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
