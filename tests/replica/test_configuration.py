"""broker.conf: Java's keys and defaults, addresses of both families, TLS, and errors that name the key and never a secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rocketmq_replica.configuration import client_tls, load_configuration, parse_configuration, server_tls
from rocketmq_replica.property_values import ConfigurationError
from tests.replica.support import configuration_text

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
    [
        "SECRET",
        '{"accessKey":"group","secretKey":"SECRET"',
        '{"accessKey":"","secretKey":"SECRET"}',
        '["SECRET"]',
        '{"accessKey":["SECRET"],"secretKey":"SECRET"}',
        "${NOWHERE}SECRET",
    ],
)
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
