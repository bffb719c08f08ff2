"""broker.conf: Java's keys and defaults, the environment, and errors that say what is wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rocketmq_replica.configuration import load_configuration, parse_configuration
from rocketmq_replica.property_values import ConfigurationError

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
    ],
)
def test_bad_values_are_named(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_configuration(MINIMAL + line, ENVIRONMENT)


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


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"broker\.conf: cannot be read"):
        load_configuration(tmp_path / "broker.conf", {})


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_bytes(b"brokerName=\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"broker\.conf: properties .* are not UTF-8"):
        load_configuration(tmp_path / "broker.conf", {})
