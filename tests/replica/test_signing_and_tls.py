"""broker.conf: Java's keys and defaults, errors that name the key; a replica with keys signs, and speaks TLS."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.serialization import decode_properties
from rocketmq_remoting.signature import Credentials, SignatureState, sign_command, verify
from rocketmq_remoting.tls import ClientTls, TlsFiles
from rocketmq_replica.broker_container import BrokerContainer, read_container
from rocketmq_replica.configuration import (
    client_tls,
    load_configuration,
    load_container_configuration,
    parse_configuration,
    server_tls,
)
from rocketmq_replica.controller.operator_requests import OPERATORS_ONLY
from rocketmq_replica.property_values import ConfigurationError
from tests.replica.support import Client, FakeController, Lab, RunningReplica, configuration_text, tls_keys
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.connection import RemotingConnection
    from tests.security.certificates import Authority

MINIMAL = """
# as an operator renders it
brokerName = broker-a
controllerAddr=10.0.0.1:9878;10.0.0.2:9878
storePathRootDir=${STORE_DIR}
brokerIP1=${POD_IP}
"""
ENVIRONMENT = {"STORE_DIR": "/data/store", "POD_IP": "10.1.2.3"}


def test_defaults_are_javas() -> None:
    configuration = parse_configuration(MINIMAL, ENVIRONMENT)
    assert configuration.controller_addresses == ("10.0.0.1:9878", "10.0.0.2:9878")
    assert configuration.broker_address == "10.1.2.3:10911"
    assert configuration.ha_address == "10.1.2.3:10912"
    assert configuration.epoch_file == Path("/data/store/epochFileCheckpoint")
    assert configuration.identity_file == Path("/data/store/brokerIdentity")
    assert configuration.commit_log_folder == Path("/data/store/commitlog")
    assert configuration.mapped_file_size_commit_log == 1 << 30
    assert configuration.slave_timeout_seconds == 3.0
    assert configuration.controller_heartbeat_timeout_seconds == 10.0
    assert (configuration.in_sync_replicas, configuration.min_in_sync_replicas) == (1, 1)
    assert not configuration.all_ack_in_sync_state_set


def test_a_replica_behind_a_service_listens_at_its_own_address() -> None:
    plain = parse_configuration(MINIMAL, ENVIRONMENT)
    assert (plain.own_ip, plain.ha_bind_ip, plain.addresses_are_translated) == ("10.1.2.3", "10.1.2.3", False)
    known = parse_configuration(
        MINIMAL + "brokerIP1=10.96.0.1\nbrokerIP2=10.96.0.1\nbindAddress=10.1.2.3\n", ENVIRONMENT
    )
    assert (known.broker_address, known.ha_address) == ("10.96.0.1:10911", "10.96.0.1:10912")
    assert (known.own_ip, known.ha_bind_ip, known.addresses_are_translated) == ("10.1.2.3", "10.1.2.3", True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("listenPort=port", "listenPort=port: expected a whole number from 1 to 65535"),
        ("listenPort=0", "listenPort=0: expected a whole number from 1 to 65535"),
        ("allAckInSyncStateSet=yes", "allAckInSyncStateSet=yes: expected true or false"),
        ("controllerAddr=10.0.0.1", "controllerAddr=10.0.0.1: expected host:port"),
        ("controllerAddr=;;;", "controllerAddr=;;;: expected host:port"),
        ("controllerAddr=10.0.0.1:²", "controllerAddr=10.0.0.1:²: expected host:port"),
        ("controllerAddr=::1:9878", "controllerAddr=::1:9878: expected an IPv6 address in brackets"),
        ("namesrvAddr=[::1]:9876;fd00::1:9876", "namesrvAddr=.*;fd00::1:9876: expected "),
        ("namesrvAddr=[::1]", r"namesrvAddr=\[::1\]: expected "),
        ("brokerIP1=[::1", r"brokerIP1=\[::1: expected "),
        ("brokerIP2=::g", "brokerIP2=::g: expected "),
        ("bindAddress=[::1]:80", r"bindAddress=\[::1\]:80: expected "),
        ("authenticationEnabled=true", "authenticationEnabled=true: expected innerClient"),
        ("controllerAddr=", "controllerAddr: empty, expected a value in every broker.conf"),
        ("flushDiskType=LATER", "flushDiskType=LATER: expected SYNC_FLUSH or ASYNC_FLUSH"),
        ("brokerName=a#b", "brokerName=a#b: expected a name without '#'"),
        ("brokerIP1=somewhere", "brokerIP1=somewhere: expected an IP address"),
        ("slaveTimeout=3s", "slaveTimeout=3s: expected a whole number"),
        ("brokerIP2=${NOWHERE}", r"brokerIP2=\$\{NOWHERE\}: the environment has no NOWHERE"),
        ("tls.server.mode=enforcing", "tls.server.mode.*expected a certificate file"),
        ("tls.server.mode=sometimes", "tls.server.mode=sometimes: expected disabled, permissive or enforcing"),
        ("tls.server.need.client.auth=require", "tls.server.need.client.auth: expected tls.server.certPath"),
        ("tls.server.need.client.auth=yes", "expected none, optional or require"),
        ("tls.server.certPath=/nowhere/tls.crt", "expected both files or neither"),
        ("tls.enable=true\ntls.client.trustCertPath=/nowhere/ca.crt", "tls.client.*expected PEM files"),
    ],
)
def test_bad_values_are_named(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tls_of(line)


def tls_of(line: str = "") -> tuple[object, object]:
    """The TLS settings for dialling and for listening; the files are read here, everything else by the parser."""
    configuration = parse_configuration(MINIMAL + line, ENVIRONMENT)
    return client_tls(configuration), server_tls(configuration)


def test_without_tls_keys_everything_is_plain() -> None:
    assert tls_of() == (None, None)


@pytest.mark.parametrize(
    "value",
    ["SECRET", '{"accessKey":"group","secretKey":"SECRET"', '{"accessKey":"","secretKey":"SECRET"}', '["SECRET"]',
     '{"accessKey":["SECRET"],"secretKey":"SECRET"}', "${NOWHERE}SECRET"],
)  # fmt: skip
def test_bad_credentials_are_refused_without_showing_them(value: str) -> None:
    with pytest.raises(ConfigurationError, match="innerClientAuthenticationCredentials: ") as raised:
        parse_configuration(f"{MINIMAL}innerClientAuthenticationCredentials={value}\n", ENVIRONMENT)
    assert "SECRET" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("key", ["brokerName", "controllerAddr", "storePathRootDir"])
def test_missing_keys_are_named(key: str) -> None:
    text = "\n".join(line for line in MINIMAL.splitlines() if not line.startswith(key))
    with pytest.raises(ConfigurationError, match=f"{key}: missing"):
        parse_configuration(text, ENVIRONMENT)


def test_unknown_keys_are_named_once_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        parse_configuration(MINIMAL + "traceTopicEnable=true\nbrokerId=-1\n", ENVIRONMENT)
    assert [record.getMessage() for record in caplog.records] == [
        "ignored keys of broker.conf: brokerId, traceTopicEnable"
    ]


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigurationError, match=r"broker\.conf: cannot be read"):
        load_configuration(path, {})
    path.write_bytes(b"brokerName=\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"broker\.conf: properties .* are not UTF-8"):
        load_configuration(path, {})


@pytest.mark.parametrize("written", ["fd00::5", "[fd00::5]", "FD00:0::5", "[fd00:0:0:0:0:0:0:5]"])
def test_a_replica_writes_its_own_address_in_one_spelling(tmp_path: Path, written: str) -> None:
    text = configuration_text(tmp_path, "[::1]:9878", written, namesrvAddr="[FD00::1]:9876;10.0.0.1:9876")
    found = parse_configuration(text, {})
    assert (found.broker_address, found.ha_address) == ("[fd00::5]:10911", "[fd00::5]:10912")
    assert found.name_server_addresses == ("[fd00::1]:9876", "10.0.0.1:9876")
    assert found.own_ip == "fd00::5"


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({"POD_IP": "10.0.0.1"}, "10.0.0.1:10911"),
        ({"POD_IP": "10.0.0.1", "POD_IPS": "10.0.0.1,fd00::5", "POD_IP_FAMILY": "IPv6"}, "[fd00::5]:10911"),
        ({"POD_IP": "fd00::5", "POD_IPS": "fd00::5,10.0.0.1", "POD_IP_FAMILY": "IPv4"}, "10.0.0.1:10911"),
        ({"POD_IP": "10.0.0.1", "POD_IPS": "10.0.0.1", "POD_IP_FAMILY": "IPv6"}, "10.0.0.1:10911"),
    ],
)
def test_of_its_pods_addresses_a_replica_has_the_one_of_its_family(
    tmp_path: Path, environment: dict[str, str], address: str
) -> None:
    text = configuration_text(tmp_path, "[::1]:9878", "${POD_IP}", listenAddress="${LISTEN_IP}")
    found = parse_configuration(text, environment)
    assert found.broker_address == address
    assert found.listen_ip == found.ha_bind_ip == ("::" if "," in environment.get("POD_IPS", "") else "10.0.0.1")
    assert found.own_ip == address.rpartition(":")[0].strip("[]"), "from where it dials, and is known"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "storePathRootDir"),
        ({"storePathRootDir": "other"}, "listenPort"),
        ({"storePathRootDir": "other", "listenPort": 10912, "haListenPort": 12000}, "listenPort=.*has it already"),
        ({"storePathRootDir": "other", "listenPort": 12000, "haListenPort": 10911}, "haListenPort=.*has it already"),
        ({"storePathRootDir": "other", "listenPort": 10909}, "listenPort=.*has it already"),
        ({"storePathRootDir": "other", "listenPort": 10914, "haListenPort": 12000}, "listenPort - 2=.*has it already"),
        (
            {"storePathRootDir": "other", "listenPort": 12000, "storePathBrokerIdentity": "one/brokerIdentity"},
            "storePathBrokerIdentity=.*DefaultCluster#broker-a of this container has it already",
        ),
    ],
)
def test_two_brokers_that_would_share_something_are_refused(keys: dict[str, object], message: str) -> None:
    first = parse_configuration(configuration_text(Path("one"), "h:1", "127.0.0.1"), {})
    second = parse_configuration(configuration_text(Path("one"), "h:1", "127.0.0.1", **keys), {})
    with pytest.raises(ConfigurationError, match=message):
        BrokerContainer([first, second])


def test_a_broker_whose_own_ports_are_one_is_refused() -> None:
    text = configuration_text(Path("one"), "h:1", "127.0.0.1", listenPort=11000, haListenPort=11000)
    with pytest.raises(ConfigurationError, match="must differ"):
        BrokerContainer([parse_configuration(text, {})])


def test_javas_container_conf_is_read(tmp_path: Path) -> None:
    for name, port in (("a", 10911), ("b", 10921)):
        text = configuration_text(tmp_path / name, "h:1", "127.0.0.1", brokerName=name, listenPort=port)
        (tmp_path / f"{name}.conf").write_text(text)
    (tmp_path / "container.conf").write_text(
        f"listenPort=10811\nnamesrvAddr=h:9876\nbrokerConfigPaths={tmp_path}/a.conf:{tmp_path}/b.conf\n"
    )
    container, configuration = read_container([], tmp_path / "container.conf", {})
    assert [member.configuration.broker_name for member in container.members] == ["a", "b"]
    assert configuration == load_container_configuration(tmp_path / "container.conf", {})
    assert configuration is not None
    assert (configuration.bind_address, configuration.listen_port) == ("127.0.0.1", 10811)
    with pytest.raises(ConfigurationError, match=r"c\.conf: cannot be read"):
        read_container([tmp_path / "c.conf"], None, {})
    with pytest.raises(ConfigurationError, match=r"a container needs broker\.conf files"):
        read_container([], None, {})


SECRET = "planted-secret-of-the-group"
GROUP = Credentials(access_key="group", secret_key=SECRET)
STRANGER = Credentials(access_key="stranger", secret_key="planted-secret-of-a-stranger")
LIAR = Credentials(access_key="group", secret_key="not the secret")
KEYS = {"innerClientAuthenticationCredentials": f'{{"accessKey":"group","secretKey":"{SECRET}"}}'}
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION

ROLE_CHANGE_FIELDS = {"masterAddress": "127.0.0.9:1", "masterBrokerId": "9", "masterEpoch": "7"}
OPERATORS_REQUESTS = {
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: (ROLE_CHANGE_FIELDS, b'{"syncStateSet":[9],"syncStateSetEpoch":9}'),
    RequestCode.EXCHANGE_BROKER_HA_INFO: ({"masterHaAddress": "127.0.0.9:2"}, None),
    RequestCode.UPDATE_BROKER_CONFIG: ({}, b"minInSyncReplicas=99\n"),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "T"}, None),
}
QUESTIONS = (
    RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.EXCHANGE_BROKER_HA_INFO, RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)  # fmt: skip


class StrictController(FakeController):
    """Hears only what is rightly signed, each signature of a change once, and signs what it asks."""

    def __init__(self) -> None:
        super().__init__()
        self.unsigned: list[int] = []
        self.seen: set[str] = set()

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        fields = command.ext_fields or {}
        if verify(fields, command.body, GROUP) is not SignatureState.VALID:
            self.unsigned.append(command.code)
            return command.answer(REFUSED)
        if "invokeTime" in fields:
            assert fields["Signature"] not in self.seen
            self.seen.add(fields["Signature"])
        return super().handle(command, connection)


@pytest.fixture
async def controller() -> AsyncIterator[StrictController]:
    fake = StrictController()
    await fake.start()
    yield fake
    await fake.stop()


async def ask(
    client: Client, at: RunningReplica, code: int, signed_as: Credentials | None, **extra: object
) -> RemotingCommand:
    fields, body = OPERATORS_REQUESTS.get(RequestCode(code), ({}, None))
    command = request(code, ext_fields=extra.get("ext_fields", fields), body=extra.get("body", body))  # type: ignore[arg-type]
    if signed_as is not None:
        command = sign_command(command, signed_as)
    return await client.remoting.invoke(at.address, command, timeout_seconds=5.0)


async def test_everything_asked_of_a_controller_is_signed(controller: StrictController, lab: Lab) -> None:
    master, slave = await lab.pair(**KEYS)
    await eventually(lambda: {1, 2} <= controller.heartbeats.keys())
    await lab.client.store(master, b"one")
    await slave.stop()
    await eventually(lambda: controller.members == {1})
    assert controller.unsigned == []
    changing = {RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_ELECT_MASTER}
    assert changing <= set(controller.requests)
    assert controller.seen, "changes carry when they were made, or a signature could be sent again"


@pytest.mark.parametrize("signed_as", [None, STRANGER, LIAR], ids=["unsigned", "unknown key", "wrong signature"])
async def test_only_the_operator_changes_a_replica(
    controller: StrictController, lab: Lab, signed_as: Credentials | None
) -> None:
    assert set(OPERATORS_REQUESTS) == OPERATORS_ONLY
    replica = await lab.master(**KEYS)
    await lab.client.store(replica, b"x", topic="T")
    before = (replica.process.broker.master, replica.process.broker.policy.min_in_sync_replicas)
    for code in OPERATORS_REQUESTS:
        answer = await ask(lab.client, replica, code, signed_as)
        assert answer.code == REFUSED, code
        assert not answer.body
        assert SECRET not in (answer.remark or "")
    assert (replica.process.broker.master, replica.process.broker.policy.min_in_sync_replicas) == before
    assert replica.role == "MASTER"
    assert await lab.client.bodies(replica, topic="T") == [b"x"]
    for code in QUESTIONS:  # by a slave that has not been restarted with the key yet, or a controller with a wrong one
        assert (await ask(lab.client, replica, code, signed_as, ext_fields={}, body=None)).code == SUCCESS, code


async def test_the_operator_is_heard(controller: StrictController, lab: Lab) -> None:
    replica = await lab.master(**KEYS)
    for code in OPERATORS_REQUESTS.keys() - {RequestCode.NOTIFY_BROKER_ROLE_CHANGED}:
        assert (await ask(lab.client, replica, code, GROUP)).code == SUCCESS, code
    assert replica.process.broker.policy.min_in_sync_replicas == 99
    assert (await ask(lab.client, replica, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, GROUP)).code == SUCCESS
    assert replica.role == "SLAVE"
    assert replica.process.broker.master.broker_id == 9


async def test_the_check_can_be_turned_off_like_javas(controller: StrictController, lab: Lab) -> None:
    replica = await lab.master(**KEYS, authenticationEnabled="false")
    assert (await ask(lab.client, replica, RequestCode.UPDATE_BROKER_CONFIG, None)).code == SUCCESS
    assert controller.unsigned == []


async def test_a_key_can_be_changed_without_a_time_in_which_the_operator_is_not_heard(
    controller: StrictController, lab: Lab
) -> None:
    """A request signed with the old key turns the check off; a replica without a key cannot turn it on."""
    replica = await lab.master(**KEYS)
    update = RequestCode.UPDATE_BROKER_CONFIG
    assert (await ask(lab.client, replica, update, LIAR, body=b"authenticationEnabled=false")).code == REFUSED
    assert (await ask(lab.client, replica, update, GROUP, body=b"authenticationEnabled=false")).code == SUCCESS
    assert (await ask(lab.client, replica, update, LIAR, body=b"minInSyncReplicas=2")).code == SUCCESS
    shown = await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, None)
    assert decode_properties(shown.body)["authenticationEnabled"] == "false"
    assert (await ask(lab.client, replica, update, LIAR, body=b"authenticationEnabled=true")).code == SUCCESS
    assert (await ask(lab.client, replica, update, LIAR, body=b"minInSyncReplicas=1")).code == REFUSED
    controller.unsigned.clear()


async def test_a_check_without_a_key_cannot_be_turned_on(lab: Lab) -> None:
    replica = await lab.start("one")
    update = RequestCode.UPDATE_BROKER_CONFIG
    await eventually(replica.process.listening.is_set)
    answer = await ask(lab.client, replica, update, None, body=b"minInSyncReplicas=3\nauthenticationEnabled=true")
    assert answer.code == REFUSED
    assert "authenticationEnabled=true: expected innerClient" in (answer.remark or "")
    assert replica.process.broker.policy.min_in_sync_replicas == 1, "all of a request or nothing"


async def test_the_secret_is_shown_nowhere(
    controller: StrictController, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        replica = await lab.master(**KEYS)
        answer = await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, GROUP)
        await ask(lab.client, replica, RequestCode.GET_BROKER_CONFIG, LIAR)
        await replica.stop()
    assert "innerClientAuthenticationCredentials" not in decode_properties(answer.body)
    assert SECRET.encode() not in (answer.body or b"")
    assert SECRET not in caplog.text
    assert SECRET not in repr(replica.process.configuration)


async def test_permissive_takes_both(controller: StrictController, lab: Lab, authority: Authority) -> None:
    keys = tls_keys(authority, mode="permissive") | {"tls.enable": "false"} | KEYS
    replica = await lab.master(**keys)
    await lab.client.store(replica, b"plainly")
    sealed = RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))
    try:
        answer = await sealed.invoke(
            replica.address, sign_command(request(RequestCode.GET_BROKER_HA_STATUS), GROUP), timeout_seconds=5.0
        )
        assert answer.code == SUCCESS
    finally:
        await sealed.close()
