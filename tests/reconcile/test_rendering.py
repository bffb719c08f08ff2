"""broker.conf and pods against golden files, and the start script and the liveness probe as a shell runs them."""

from __future__ import annotations

import json
import os
import subprocess
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.credentials import USABLE
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.api.rules import RESERVED_CONFIG_KEYS
from brokergroup_operator.backup.files import UNFINISHED
from brokergroup_operator.reconcile.render.broker_config import broker_conf, broker_properties
from brokergroup_operator.reconcile.render.containers import broker_container, command, java_arguments
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import foreign
from rocketmq_remoting.serialization import decode_properties
from tests.reconcile import builders as b
from tests.reconcile.cases import compare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from brokergroup_operator.api.brokergroup import BrokerGroup


DURABILITIES = ("Strict", "Available", "Fast")
IMPLEMENTATIONS = ("Java", "Python")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_broker_conf(durability: str, implementation: str) -> None:
    of = b.group(durability=durability, implementation=implementation, nameServers=["ns-0:9876", "ns-1:9876"])
    compare(f"{durability.lower()}-{implementation.lower()}.conf", broker_conf(of, b.SETTINGS))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_pod(implementation: str) -> None:
    of = b.group(implementation=implementation, resources={"limits": {"memory": "2Gi"}, "requests": {"cpu": "250m"}})
    pod = build_pod(of, b.member(2), b.SETTINGS)
    compare(f"pod-{implementation.lower()}.yaml", yaml.safe_dump(pod, sort_keys=False, width=120))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": 1}, ("true", "1", "1", "3000")),
        ({"replicas": 2}, ("true", "1", "1", "3000")),
        ({"replicas": 3}, ("true", "2", "2", "3000")),
        ({"replicas": 5}, ("true", "2", "2", "3000")),
        ({"replication": {"minInSyncReplicas": 3}, "replicas": 5}, ("true", "3", "3", "3000")),
        ({"durability": "Fast", "replication": {"minInSyncReplicas": 2}}, ("false", "2", "2", "15000")),
        ({"replication": {"slaveNotCatchUpSeconds": 7}}, ("true", "2", "2", "7000")),
    ],
)
def test_durability_follows_replicas_and_reaches_the_brokers(spec: dict[str, Any], expected: tuple[str, ...]) -> None:
    properties = broker_properties("orders", b.group(**spec).spec, b.SETTINGS)
    keys = ("allAckInSyncStateSet", "inSyncReplicas", "minInSyncReplicas", "haMaxTimeSlaveNotCatchup")
    assert tuple(properties[key] for key in keys) == expected


@pytest.mark.parametrize(
    ("spec", "floor"),
    [
        ({}, True),
        ({"replicas": 2}, False),
        ({"durability": "Available", "replication": {"minInSyncReplicas": 2}}, True),
        ({"durability": "Fast", "replication": {"minInSyncReplicas": 2}}, False),
    ],
)
def test_the_floor_holds_where_all_acknowledge_and_more_than_one_must(spec: dict[str, Any], floor: bool) -> None:
    assert acknowledgement_rule(b.group(**spec).spec).shrink_floor is floor


def test_a_user_may_override_tuning_but_never_what_the_operator_sets() -> None:
    """The API server refuses the reserved keys; the renderer does not rely on it."""
    bad = dict.fromkeys(RESERVED_CONFIG_KEYS, "smuggled")
    mine = {"checkSyncStateSetPeriod": "250", "haSendHeartbeatInterval": "7", "fileReservedTime": "24"}
    properties = broker_properties("orders", b.group(implementation="Java", config=bad | mine).spec, b.SETTINGS)
    assert properties.items() >= mine.items()
    ours = broker_properties("orders", b.group(implementation="Java").spec, b.SETTINGS)
    assert {key for key in ours if properties[key] == "smuggled"} == set()


@pytest.mark.parametrize(
    ("implementation", "spec", "expected"),
    [
        # Not before another master is elected: 3 s of silence, 3 s for the fence, 1 s to notify the slaves.
        ("Java", {}, "7000"),
        ("Java", {"failover": {"heartbeatTimeoutMilliseconds": 5000}}, "11000"),
        ("Java", {"failover": {"heartbeatTimeoutMilliseconds": 1000}}, "5000"),
        ("Java", {"replication": {"slaveNotCatchUpSeconds": 1}}, "7000"),
        ("Java", {"replication": {"slaveNotCatchUpSeconds": 10}}, "10000"),
        ("Python", {}, None),
    ],
)
def test_java_brokers_end_a_silent_link_sooner_than_by_themselves_and_after_an_election(
    implementation: str, spec: dict[str, Any], expected: str | None
) -> None:
    """Measured: 20 s without a write where a slave was cut off; and with 3 s here 3 s more where a master was (it is dialled)."""
    properties = broker_properties("orders", b.group(implementation=implementation, **spec).spec, b.SETTINGS)
    assert properties.get("haHousekeepingInterval") == expected


def test_every_key_we_set_for_good_is_reserved() -> None:
    """Otherwise a user could write it, be accepted, and wonder why it has no effect."""
    smuggled = dict.fromkeys(broker_properties("orders", b.group(nameServers=["n:1"]).spec, b.SETTINGS), "x")
    result = broker_properties("orders", b.group(nameServers=["n:1"], config=smuggled).spec, b.SETTINGS)
    assert {key for key, value in result.items() if value != "x"} <= set(RESERVED_CONFIG_KEYS)


def test_a_backslash_survives_java_properties() -> None:
    assert "messageDelayLevel=1s\\\\2s\n" in broker_conf(b.group(config={"messageDelayLevel": "1s\\2s"}), b.SETTINGS)


def started(
    folder: Path, of: BrokerGroup, *, java: str, shell: str = "sh", **environment: str
) -> tuple[Path, list[str]]:
    """Run the command of the pod, with a `java` that is this script; return broker.conf and what was printed."""
    config, tools = folder / "config", folder / "bin"
    for one in (config, tools, folder / "run"):
        one.mkdir()
    (config / names.CONFIG_FILE).write_text(broker_conf(of, b.SETTINGS), encoding="utf-8")
    (tools / "java").write_text(f"#!/bin/sh\n{java}\n", encoding="utf-8")
    (tools / "java").chmod(0o755)
    environment |= {
        "PATH": f"{tools}:{os.environ['PATH']}", "POD_IP": "10.1.2.3", "CONFIG_DIR": str(config),
        "RUN_DIR": str(folder / "run"), "ROCKETMQ_HOME": "/opt/rocketmq",
    }  # fmt: skip
    environment.setdefault("STORE_DIR", "/data/store")
    program = [shell, *command(of.spec)[1:]]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, check=True, umask=0o022)
    return folder / "run" / names.CONFIG_FILE, ended.stdout.splitlines()


PRINT_ARGUMENTS = 'printf "%s\\n" "$@"'


def test_the_start_script_fills_in_the_placeholders(tmp_path: Path) -> None:
    conf, printed = started(tmp_path, b.group(implementation="Java"), java=PRINT_ARGUMENTS)
    rendered = conf.read_text(encoding="utf-8")
    assert "brokerIP1=10.1.2.3\n" in rendered
    assert "storePathCommitLog=/data/store/commitlog\n" in rendered
    assert "${" not in rendered
    assert printed[-5:] == ["-cp", "/opt/rocketmq/lib/*", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]


@pytest.mark.parametrize("folder", ["store", "log", ""])
def test_a_java_broker_does_not_start_on_part_of_a_backup(tmp_path: Path, folder: str) -> None:
    for one in ("store", "log"):
        (tmp_path / one).mkdir()
    source = {"fromBackup": {"claim": {"name": "copies", "folder": "lost/nightly"}}}
    of = b.group(implementation="Java", storage={"commitLog": {"size": "1Gi"}}, bootstrap=source)
    folders = {"STORE_DIR": str(tmp_path / "store"), "COMMIT_LOG_DIR": str(tmp_path / "log")}
    if folder:
        (tmp_path / folder / UNFINISHED).touch()
        with pytest.raises(subprocess.CalledProcessError) as refused:
            started(tmp_path, of, java=PRINT_ARGUMENTS, **folders)
        assert f"{folder}/restore-unfinished: a backup was copied here only in part" in refused.value.stderr
    else:
        _, printed = started(tmp_path, of, java=PRINT_ARGUMENTS, **folders)
        assert "org.apache.rocketmq.broker.BrokerStartup" in printed


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_start_script_writes_the_credentials_of_its_environment(tmp_path: Path, shell: str) -> None:
    """As a Java broker reads them: JSON inside properties; and the file is for its own user only."""
    secret = "s|e&c%s r'e:t=#!"  # whatever api/credentials.py lets through
    assert USABLE.fullmatch(secret)
    of = b.group(implementation="Java", security={"credentialsSecretRef": {"name": "keys"}})
    keys = {"BROKER_ACCESS_KEY": "orders", "BROKER_SECRET_KEY": secret}
    conf, printed = started(tmp_path, of, java=f"umask\n{PRINT_ARGUMENTS}", shell=shell, **keys)
    properties = decode_properties(conf.read_bytes())
    given = json.loads(properties["innerClientAuthenticationCredentials"])
    assert given == {"accessKey": "orders", "secretKey": secret}
    assert properties["brokerIP1"] == "10.1.2.3"
    assert properties["authenticationMetadataProvider"].endswith(".LocalAuthenticationMetadataProvider")
    assert conf.stat().st_mode & 0o777 == 0o600
    assert printed[0] in {"0022", "022"}, "the broker's own files keep their mode"
    assert secret not in "".join(printed)


@pytest.mark.parametrize(
    ("limit", "heap", "direct"),
    [("4Gi", 2048, 1024), ("512Mi", 192, 96), ("768Mi", 362, 181), ("1Gi", 512, 256), ("128Mi", 21, 10)],
)
def test_issue_36_a_small_limit_leaves_the_jvm_its_own_part(limit: str, heap: int, direct: int) -> None:
    """apache/rocketmq-operator #36: heap and direct memory filled the limit, and the broker was killed for what it needs beside."""
    spec = b.group(resources={"limits": {"memory": limit}}, jvm={"extraArguments": ["-Xmx100m"]}).spec
    assert java_arguments(spec)[:3] == [f"-Xms{heap}m", f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={direct}m"]
    assert java_arguments(spec)[-1] == "-Xmx100m"
    assert java_arguments(b.group().spec)[0] == "-Xms512m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("250m", Fraction(1, 4)), ("1.5Ki", 1536), ("2G", 2 * 10**9), ("1Ei", 2**60)],
)
def test_quantities(text: str, expected: Any) -> None:
    assert foreign.parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1", "1Zi", "0x1"])
def test_bad_quantities_are_named(text: str) -> None:
    with pytest.raises(foreign.QuantityError, match="is no quantity"):
        foreign.parse_quantity(text)


OF_TWO_DISKS = {"commitLog": {"size": "1Gi"}}


def probe(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = broker_container(b.group(**spec).spec, b.SETTINGS)["livenessProbe"]
    return found


class Disks:
    """The folders of a broker."""

    def __init__(self, folder: Path) -> None:
        self.store, self.commit_log = folder / "store", folder / "commitlog"
        self.hung: list[Path] = []
        for one in (self.store, self.commit_log):
            one.mkdir()

    def hang(self, folder: Path) -> None:
        os.mkfifo(folder / ".disk-probe")
        self.hung.append(folder / ".disk-probe")

    def ends(self, *, programs: str | None = None, **spec: Any) -> bool:
        """Whether the probe's command ends, and with 0. Its output is waited for, as a container runtime does."""
        environment = {
            "PATH": os.environ["PATH"] if programs is None else programs,
            "STORE_DIR": str(self.store),
            "COMMIT_LOG_DIR": str(self.commit_log),
        }
        shell, *arguments = probe(**spec)["exec"]["command"]
        assert shell == "sh"
        # What hangs does so for ever: a longer wait finds the same.
        seconds = 2.0 if self.hung else 600.0
        try:
            done = subprocess.run(
                ["/bin/sh", *arguments], env=environment, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        assert (done.stdout, done.stderr) == (b"", b"")
        return done.returncode == 0

    def answer(self) -> None:
        """Release the probes that still wait."""
        for one in self.hung:
            os.close(os.open(one, os.O_RDONLY | os.O_NONBLOCK))


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    made.answer()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_disk_that_answers_passes(disks: Disks, implementation: str) -> None:
    assert disks.ends(implementation=implementation)
    assert (disks.store / ".disk-probe").stat().st_size == 512
    assert list(disks.commit_log.iterdir()) == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_disk_that_hangs_fails_and_holds_up_only_its_own_write(disks: Disks, implementation: str) -> None:
    """At the timeout the runtime kills the probe's process, and waits until it and its output have ended."""
    disks.hang(disks.store)
    assert not disks.ends(implementation=implementation)


def test_the_disk_of_the_commit_log_counts_where_it_is_another(disks: Disks) -> None:
    assert disks.ends(storage=OF_TWO_DISKS)
    (disks.commit_log / ".disk-probe").unlink()
    disks.hang(disks.commit_log)
    assert not disks.ends(storage=OF_TWO_DISKS)


def test_an_error_of_the_disk_is_an_answer(disks: Disks) -> None:
    """No restart mends a full disk, a lost folder, or an image without `dd`; it would be one after another."""
    (disks.store / ".disk-probe").symlink_to("/dev/full")
    assert disks.ends(), "no space left"
    (disks.store / ".disk-probe").unlink()
    disks.store.rmdir()
    assert disks.ends(), "no such folder"
    assert disks.ends(programs="/nowhere"), "no dd"


def test_a_disk_may_be_slow_for_twenty_seconds_and_hang_for_a_minute() -> None:
    by_default = probe()
    assert by_default["timeoutSeconds"] == 20
    assert by_default["periodSeconds"] * by_default["failureThreshold"] == 60
    patient = {"livenessProbe": {"timeoutSeconds": 60, "periodSeconds": 60, "failureThreshold": 5}}
    chosen = probe(podTemplate={"spec": {"broker": patient}})
    assert chosen["periodSeconds"] * chosen["failureThreshold"] == 300
    assert chosen["exec"] == by_default["exec"]
