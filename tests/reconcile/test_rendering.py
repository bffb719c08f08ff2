"""broker.conf and pods against golden files, the liveness probe as a shell runs it, and a group's Secrets."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.credentials import USABLE
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.api.rules import RESERVED_CONFIG_KEYS
from brokergroup_operator.backup.files import UNFINISHED
from brokergroup_operator.fence.settings import FenceSettings, TlsSettings
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import EVENTS, SECRETS, Resource
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, MakeSecret
from brokergroup_operator.reconcile.render import broker_config, certificate
from brokergroup_operator.reconcile.render.broker_config import broker_conf, broker_properties
from brokergroup_operator.reconcile.render.containers import broker_container, command, java_arguments
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import foreign
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.settings import ReconcileSettings
from rocketmq_remoting.serialization import decode_properties
from tests.reconcile import builders as b
from tests.reconcile.cases import compare
from tests.reconcile.world import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.plan import Action
    from tests.reconcile.world import World


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
    ("replicas", "expected"),
    [(1, ("true", "1")), (2, ("true", "1")), (3, ("true", "2")), (5, ("true", "2"))],
)
def test_durability_follows_the_number_of_replicas_where_the_spec_is_silent(
    replicas: int, expected: tuple[str, str]
) -> None:
    properties = broker_properties("orders", b.group(replicas=replicas).spec, b.SETTINGS)
    assert (properties["allAckInSyncStateSet"], properties["minInSyncReplicas"]) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replication": {"minInSyncReplicas": 3}, "replicas": 5}, ("true", "3", "3", "3000")),
        ({"durability": "Fast", "replication": {"minInSyncReplicas": 2}}, ("false", "2", "2", "15000")),
        ({"replication": {"slaveNotCatchUpSeconds": 7}}, ("true", "2", "2", "7000")),
    ],
)
def test_what_durability_leaves_open_reaches_the_brokers(spec: dict[str, Any], expected: tuple[str, ...]) -> None:
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


def test_a_python_replica_gets_the_credentials_from_its_environment() -> None:
    of = b.group(implementation="Python", security={"credentialsSecretRef": {"name": "keys"}})
    properties = decode_properties(broker_conf(of, b.SETTINGS).encode())
    assert json.loads(properties["innerClientAuthenticationCredentials"]) == {
        "accessKey": "${BROKER_ACCESS_KEY}", "secretKey": "${BROKER_SECRET_KEY}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("signature", "asked_for"), [("Disabled", "false"), ("Accepted", "true"), ("Required", "true")]
)
def test_a_python_replica_hears_only_us_unless_the_key_is_being_changed(signature: str, asked_for: str) -> None:
    of = b.group(implementation="Python", security={"credentialsSecretRef": {"name": "keys"}, "signature": signature})
    assert decode_properties(broker_conf(of, b.SETTINGS).encode())["authenticationEnabled"] == asked_for
    without_a_key = b.group(implementation="Python")
    assert "authenticationEnabled" not in decode_properties(broker_conf(without_a_key, b.SETTINGS).encode())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_credentials_reach_the_pod_from_the_secret_and_nothing_else(implementation: str) -> None:
    of = b.group(implementation=implementation, security={"credentialsSecretRef": {"name": "keys"}})
    with_keys = {
        entry["name"]: entry for entry in build_pod(of, b.member(1), b.SETTINGS)["spec"]["containers"][0]["env"]
    }
    plain = build_pod(b.group(implementation=implementation), b.member(1), b.SETTINGS)["spec"]["containers"][0]["env"]
    assert with_keys["BROKER_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "accessKey"}}
    assert with_keys["BROKER_SECRET_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "secretKey"}}
    assert {entry["name"] for entry in plain} == set(with_keys) - {"BROKER_ACCESS_KEY", "BROKER_SECRET_KEY"}


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


@pytest.mark.parametrize("addresses", [(), ("operator",), (":9878",), ("operator:http",)])
def test_controller_addresses_must_be_usable(addresses: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="controller_addresses"):
        ReconcileSettings(controller_addresses=addresses)


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


PLANTED = "planted-secret-5d41402abc4b2a76"


async def create_secret(api: KubernetesApi, **entries: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
    await api.create(SECRETS, {"metadata": {"namespace": "default", "name": "keys"}, "data": data})


async def test_a_secret_is_asked_for_used_and_never_repeated(
    sandbox_world: World, api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    world = sandbox_world
    await world.create_group(
        implementation="Java",
        nameServers=["ns:9876"],
        security={"signature": "Required", "credentialsSecretRef": {"name": "keys"}},
    )
    await world.settle()
    missing = (await world.conditions())["CredentialsMissing"]
    assert missing["reason"] == "SecretNotFound"
    assert "create it with the keys accessKey and secretKey" in missing["message"]

    await create_secret(api, accessKey="orders", secretKey="")
    await world.settle()
    assert (await world.conditions())["CredentialsMissing"]["reason"] == "SecretIncomplete"

    await api.patch(SECRETS, "keys", {"stringData": {"secretKey": PLANTED}}, namespace="default")
    await world.settle()
    assert "CredentialsMissing" not in await world.conditions()
    events = (await api.list(EVENTS, namespace="default")).items
    told = json.dumps([await world.everything(), events]) + "".join(capsys.readouterr())
    assert "secretKeyRef" in told
    for form in (PLANTED, base64.b64encode(PLANTED.encode()).decode()):
        assert form not in told


class Refusing:
    """An API whose role for us may not read Secrets, or that has no time."""

    def __init__(self, api: KubernetesApi, error: ApiError) -> None:
        self._api = api
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def get(self, resource: Resource, name: str, **options: Any) -> Any:
        if resource == SECRETS:
            raise self._error
        return await self._api.get(resource, name, **options)


async def test_a_secret_that_may_not_be_read_is_a_condition_and_an_api_that_is_away_is_none(
    sandbox_world: World, api: KubernetesApi
) -> None:
    await sandbox_world.create_group(security={"credentialsSecretRef": {"name": "keys"}})
    refused: Any = Refusing(api, ApiError("secrets is forbidden", status=403, reason="Forbidden"))
    seen = await GroupFetcher(refused, sandbox_world.view).fetch(KEY)
    assert seen is not None
    assert seen.credentials_problem is not None
    assert seen.credentials_problem.reason.value == "SecretNotReadable"
    away: Any = Refusing(api, ApiError("slow down", status=429))
    with pytest.raises(ApiError, match="slow down"):
        await GroupFetcher(away, sandbox_world.view).fetch(KEY)


GIVEN = {"security": {"certificateSecretRef": {"name": "orders-certificate"}}}
JAVA = {"implementation": "Java"}
OF_TLS = replace(b.SETTINGS, controller_tls=True, controller_authority="PEM\n")
ASKED_FOR = replace(OF_TLS, client_certificates_required=True)
MOUNT = {"name": names.VOLUME_CERTIFICATE, "mountPath": names.CERTIFICATE_DIR, "readOnly": True}


def test_broker_and_fence_have_the_same_one() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    assert {"name": names.VOLUME_CERTIFICATE, "secret": {"secretName": "orders-certificate", "defaultMode": 0o440}} in (
        pod["spec"]["volumes"]
    )
    both = b.containers(pod)
    assert all(MOUNT in both[name]["volumeMounts"] for name in ("broker", "fence"))
    shell = both["broker"]["command"][-1]
    for argument in (
        "-Dtls.enable=true",
        '-Dtls.client.certPath="$CERTIFICATE_DIR/tls.crt"',
        '-Dtls.client.keyPath="$CERTIFICATE_DIR/tls.key"',
    ):
        assert argument in shell
    assert {"name": "CERTIFICATE_DIR", "value": names.CERTIFICATE_DIR} in both["broker"]["env"]


def test_the_fence_reads_what_it_is_rendered() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    told = {entry["name"]: str(entry.get("value", "10.0.0.2")) for entry in b.containers(pod)["fence"]["env"]}
    told |= {"FENCE_BROKER_ADDRESS": "10.0.0.2:10911", "FENCE_LOCAL_ADDRESS": "10.0.0.2:10911"}
    folder = Path(names.CERTIFICATE_DIR)
    authority = Path(names.CONFIG_DIR) / names.AUTHORITY_FILE
    assert FenceSettings.from_environment(told).controller_tls == TlsSettings(
        authority, folder / "tls.crt", folder / "tls.key"
    )


def test_what_a_user_says_to_java_stands_last() -> None:
    wish = JAVA | GIVEN | {"jvm": {"extraArguments": ["-Dtls.enable=false"]}}
    shell = b.containers(build_pod(b.group(**wish), b.member(1), OF_TLS))["broker"]["command"][-1]
    assert shell.index("-Dtls.enable=true") < shell.index("-Dtls.enable=false")


def test_a_python_replica_has_it_by_its_configuration() -> None:
    of = b.group(implementation="Python", config={"tls.client.trustCertPath": "/ca.crt"}, **GIVEN)
    properties = broker_config.broker_properties("orders", of.spec, OF_TLS)
    assert properties["tls.enable"] == "true"
    assert properties["tls.client.certPath"] == "${CERTIFICATE_DIR}/tls.crt"
    assert properties["tls.client.keyPath"] == "${CERTIFICATE_DIR}/tls.key"
    pod = build_pod(of, b.member(1), OF_TLS)
    assert MOUNT in b.containers(pod)["broker"]["volumeMounts"]


def test_without_one_nothing_of_it_is_anywhere() -> None:
    for implementation in ("Java", "Python"):
        pod = str(build_pod(b.group(implementation=implementation), b.member(1), ASKED_FOR))
        assert not [word for word in ("CERTIFICATE", "tls.crt", names.VOLUME_CERTIFICATE) if word in pod]


@pytest.mark.parametrize(
    ("settings", "spec", "said"),
    [
        (ASKED_FOR, JAVA, "its fences hear no controller and guard no broker"),
        (ASKED_FOR, JAVA | GIVEN, ""),
        (ASKED_FOR, JAVA | {"failover": {"isolation": {"enabled": False}}}, ""),
        (OF_TLS, JAVA, ""),
        (ASKED_FOR, {"implementation": "Python"}, "its brokers are not heard"),
        (ASKED_FOR, {"implementation": "Python", "config": {"tls.client.certPath": "/own.crt"}}, ""),
        (b.SETTINGS, JAVA | GIVEN, "is 'orders-certificate', but this operator's controllers speak no TLS"),
        (b.SETTINGS, JAVA, ""),
    ],
    ids=[
        "asked for", "asked for and given", "no fence, and an image may bring one", "not asked for", "a replica without",
        "a replica with its own", "no controller asks for it", "neither",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_reported(settings: Any, spec: dict[str, Any], said: str) -> None:
    found = certificate.problem(b.group(**spec), settings)
    assert bool(found) == bool(said)
    assert said in found
    assert not found or found.startswith("spec.security.certificateSecretRef is ")


def test_the_group_is_stalled_with_it_and_still_repaired() -> None:
    """No pod is lost over it: the brokers may have a certificate by their image."""
    seen = b.settled(**JAVA)
    pods = {name: pod for name, pod in seen.pods.items() if name != "orders-3"}
    plan = evaluate(replace(seen, pods=pods), ASKED_FOR, now=b.NOW)
    targets = [action.target for action in plan.actions]
    assert "Pod orders-3" in targets
    [status] = [action for action in plan.actions if type(action).__name__ == "WriteStatus"]
    stalled = next(one for one in status.status["conditions"] if one["type"] == "Stalled")  # type: ignore[attr-defined]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "Expected a Secret with tls.crt and tls.key for the name orders.shop" in stalled["message"]


def actions(settings: ReconcileSettings, **spec: Any) -> tuple[Action, ...]:
    """Return the actions of a pass in which two pods are missing."""
    seen = b.settled(**spec)
    return evaluate(b.changed(seen, pods=b.without(seen.pods, "orders-2", "orders-3")), settings, now=b.NOW).actions


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_only_the_fences_container_mounts_the_key_and_hears_orders(implementation: str) -> None:
    both = b.containers(build_pod(b.group(implementation=implementation), b.member(2), b.SIGNED))
    fence, broker = both[names.CONTAINER_FENCE], both[names.CONTAINER_BROKER]
    mounted = [one["name"] for one in fence["volumeMounts"]]
    told = {entry["name"]: entry.get("value") for entry in fence["env"]}
    assert names.VOLUME_FENCE_KEY in mounted
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in broker["volumeMounts"]]
    assert told["FENCE_KEY_FILE"] == "/etc/brokergroup/fence/key"
    assert told["FENCE_LOCAL_ADDRESS"] == "$(POD_IP):10911"
    assert fence["ports"] == [{"name": names.PORT_FENCE, "containerPort": 10913, "protocol": "UDP"}]
    # What a variable refers to stands before it.
    assert list(told).index("POD_IP") < list(told).index("FENCE_LOCAL_ADDRESS")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_key_that_is_mounted_is_the_one_that_the_operator_uses(implementation: str) -> None:
    group = b.group(implementation=implementation)
    pod = build_pod(group, b.member(2), b.SIGNED)
    [made] = [one for one in actions(b.SIGNED, implementation=implementation) if isinstance(one, MakeSecret)]
    secret = made.object
    [mounted] = [one["secret"] for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_FENCE_KEY]
    assert mounted["secretName"] == secret["metadata"]["name"]
    assert b.FENCE_KEYS.key_in(pod) == bytes.fromhex(base64.b64decode(secret["data"]["key"]).decode())
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "group-uid"
    assert FenceKeys(b"q" * 32).key_in(pod) is None, "a fence with another root's key is not asked"
    assert secret["data"]["key"] not in repr(made)


def test_the_secret_is_made_before_a_pod_and_only_where_one_is_missing() -> None:
    kinds = [one.resource.kind if isinstance(one, ApplyObject) else type(one).__name__ for one in actions(b.SIGNED)]
    assert kinds.index("MakeSecret") < kinds.index("Pod")
    assert kinds.count("MakeSecret") == 1
    settled = evaluate(b.settled(), b.SIGNED, now=b.NOW).actions
    assert not any(isinstance(one, MakeSecret) for one in settled)


@pytest.mark.parametrize(
    ("settings", "spec"),
    [(b.SETTINGS, {}), (b.SIGNED, {"failover": {"isolation": {"enabled": False}}})],
    ids=["no key", "no fence"],
)
def test_without_a_key_or_a_fence_there_is_no_secret(settings: Any, spec: dict[str, Any]) -> None:
    group = b.group(**spec)
    assert not any(isinstance(one, MakeSecret) for one in actions(settings, **spec))
    pod = build_pod(group, b.member(2), settings)
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in pod["spec"]["volumes"]]
