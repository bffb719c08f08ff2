"""The bundle: its content, and secrets that it must never have."""

from __future__ import annotations

import io
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kubectl.cluster import BrokerGroupOperation, BrokerGroupState, Cluster, Event, Pod
from brokergroup_operator.kubectl.report import REDACTED, _is_about, archive, redacted, redacted_text

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench

PLANTED = "hunter2-planted"


@pytest.mark.parametrize(
    "text",
    [
        f"password={PLANTED}",
        f'"secretKey": "{PLANTED}"',
        f"accessKey: {PLANTED},",
        f"-Drocketmq.client.secretKey={PLANTED}",
        f"Authorization: Bearer {PLANTED}",
        f"dial https://admin:{PLANTED}@host:1/x failed",
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED} cut off",
        f"registerCheckCode={PLANTED}",
        f"db_password: '{PLANTED}'",
        f"API_TOKEN={PLANTED}",
        f"Signature: {PLANTED}",
        f"--password {PLANTED}",
        f"secretKey => {PLANTED}",
        f"DB_PWD={PLANTED}",
        f"MYSQL_PASS={PLANTED}",
        f"passphrase: {PLANTED}",
        f"redis://:{PLANTED}@host:1/0",
        f"https://admin:p@{PLANTED}@host/x",
        f"password=with,{PLANTED}",
        f"password=with}}{PLANTED}",
        f'password: "with \\"{PLANTED}\\" in it"',
        f'{{"error":"{{\\"accessKey\\":\\"AK\\",\\"secretKey\\":\\"{PLANTED}\\"}}"}}',
        f'credentials={{"user":"u","key":"{PLANTED}"}}',
    ],
)
def test_a_secret_in_running_text_is_taken_out(text: str) -> None:
    said = redacted_text(f"before {text} after")
    assert PLANTED not in said
    assert REDACTED in said
    assert said.startswith("before ")


@pytest.mark.parametrize("text", ["broker 2 became master in epoch 5", "listening on 10.0.0.1:10911", "key=value"])
def test_other_text_stays(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize("part", ["a", "token", 'token="', "--pass ", "a://b:", "token={", "token=,"])
def test_a_line_made_to_take_long_does_not(part: str) -> None:
    """A log may have any content: 100 KB without a blank took ten minutes."""
    before_seconds = time.process_time()
    redacted_text(part * (100_000 // len(part)))
    assert time.process_time() - before_seconds < 5


def test_the_value_of_an_option_is_the_next_argument() -> None:
    said = redacted({"args": ["--password", PLANTED, "--verbose", "x"]})
    assert said == {"args": ["--password", REDACTED, "--verbose", "x"]}


def test_a_text_named_secret_is_one() -> None:
    """A volume's `secret` is a choice of one, a configuration's is a value."""
    assert redacted({"secret": PLANTED}) == {"secret": REDACTED}
    volume = {"secret": {"secretName": "orders-keys"}}
    assert redacted(volume) == volume


def test_an_object_keeps_names_and_loses_values() -> None:
    obj = {
        "metadata": {
            "name": "orders-1",
            "managedFields": [{"x": 1}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": PLANTED,
                "brokergroup.dev/revision": "r1",
                "example.dev/api-token": PLANTED,
            },
        },
        "spec": {
            "credentialsSecretRef": {"name": "orders-keys"},
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "env": [
                        {"name": "BROKER_SECRET_KEY", "value": PLANTED},
                        {
                            "name": "BROKER_ACCESS_KEY",
                            "valueFrom": {"secretKeyRef": {"name": "orders-keys", "key": "accessKey"}},
                        },
                        {"name": "JAVA_OPTS", "value": f"-Dpassword={PLANTED} -Xmx1g"},
                    ],
                    "args": [f"--token={PLANTED}"],
                }
            ],
            "config": {"aclSecretKey": PLANTED, "fileReservedTime": "24"},
        },
        "record": {"replicas": [{"brokerId": 1, "registerCheckCode": PLANTED}]},
    }
    said = redacted(obj)
    assert PLANTED not in str(said)
    assert said["metadata"] == {
        "name": "orders-1",
        "annotations": {"brokergroup.dev/revision": "r1", "example.dev/api-token": REDACTED},
    }
    spec = said["spec"]
    assert spec["credentialsSecretRef"] == {"name": "orders-keys"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["env"][1]["valueFrom"] == {"secretKeyRef": {"name": "orders-keys", "key": "accessKey"}}
    assert spec["containers"][0]["env"][2]["value"].endswith("-Xmx1g")
    assert spec["config"] == {"aclSecretKey": REDACTED, "fileReservedTime": "24"}
    assert said["record"]["replicas"] == [{"brokerId": 1, "registerCheckCode": REDACTED}]


def unpacked(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_an_archive_is_for_its_owner_alone() -> None:
    content = archive([("a.yaml", "x: 1\n")])
    assert unpacked(content) == {"brokergroup-report/a.yaml": "x: 1\n"}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getmember("brokergroup-report/a.yaml").mode == 0o600


def test_the_file_is_for_its_owner_alone(bench: Bench) -> None:
    bench.create_group()
    target = bench.folder / "report.tar.gz"
    target.touch(mode=0o644)
    for _ in range(2):
        bench.must("report", "orders", "-f", str(target))
        assert target.stat().st_mode & 0o777 == 0o600
        target.unlink()


def test_a_file_that_cannot_be_written_is_named(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("report", "orders", "-f", str(bench.folder / "nowhere" / "report.tar.gz"))
    assert said.code == 2
    assert "nowhere/report.tar.gz: No such file or directory" in said.err


def test_a_group_of_which_there_is_nothing_is_told(bench: Bench) -> None:
    make_everything(bench)
    target = bench.folder / "report.tar.gz"
    said = bench.run("report", "order", "-f", str(target))
    assert said.code == 3
    assert f"brokergroup order: neither it nor anything of it was found in namespace {bench.namespace}" in said.err
    assert not target.exists()


def make_everything(bench: Bench) -> None:
    bench.create_group(config={"aclSecretKey": PLANTED})
    bench.create_group("other")
    record = {
        "clusterName": "c", "brokerName": "orders", "nextBrokerId": 2, "masterEpoch": 0, "syncStateSet": [], "syncStateSetEpoch": 0,
        "replicas": [{"brokerId": 1, "registerCheckCode": PLANTED}],
    }  # fmt: skip
    bench.create(BrokerGroupState, "orders", record=record)
    for name in ("orders", "other"):
        spec = {"brokerGroupRef": {"name": name}, "type": "Restart", "restart": {}}
        bench.create(BrokerGroupOperation, f"restart-{name}", spec=spec)
        labels = {"brokergroup.dev/broker-group": name}
        container = {"name": "broker", "image": "b", "env": [{"name": "TOKEN", "value": PLANTED}]}
        bench.create(Pod, f"{name}-1", metadata={"labels": labels}, spec={"containers": [container]})
        about: dict[str, Any] = {"kind": "Pod", "name": f"{name}-1", "namespace": bench.namespace}
        bench.create(Event, f"event-{name}", involvedObject=about, reason="X", message=f"password={PLANTED}")


def test_the_report_of_one_group(bench: Bench) -> None:
    make_everything(bench)
    target = bench.folder / "report.tar.gz"
    assert bench.must("report", "orders", "-f", str(target)).startswith(f"{target}: ")
    assert target.stat().st_mode & 0o077 == 0
    files = {name.removeprefix("brokergroup-report/"): text for name, text in unpacked(target.read_bytes()).items()}
    assert set(files) == {
        "version.yaml", "brokergroups.yaml", "brokergroupstates.yaml", "brokergroupoperations.yaml", "pods.yaml",
        "persistentvolumeclaims.yaml", "events.yaml", "not-collected.txt",
    }  # fmt: skip
    assert not [name for name, text in files.items() if PLANTED in text]
    for name in ("brokergroups", "brokergroupoperations", "pods", "events"):
        (only,) = yaml.safe_load(files[f"{name}.yaml"])
        assert "other" not in only["metadata"]["name"]
    assert bench.namespace not in files["not-collected.txt"]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("BrokerGroup", "orders", True),
        ("Pod", "orders-2", True),
        ("PersistentVolumeClaim", "orders-12", True),
        ("Service", "orders-master", True),
        ("Service", "orders-slaves", True),
        ("ConfigMap", "orders-broker", True),
        ("PodDisruptionBudget", "orders", True),
        ("NetworkPolicy", "orders-brokers", True),
        ("NetworkPolicy", "orders", False),
        ("NetworkPolicy", "orders-eu-brokers", False),
        ("BrokerGroup", "orders-eu", False),
        ("BrokerGroup", "orders-2", False),
        ("Pod", "orders-eu-2", False),
        ("Pod", "orders", False),
        ("Service", "orders-eu-master", False),
    ],
)
def test_events_of_another_group_whose_name_begins_alike_are_not_packed(kind: str, name: str, expected: bool) -> None:
    event = {"kind": "Event", "involvedObject": {"kind": kind, "name": name}}
    assert _is_about(event, "orders") is expected


def test_the_report_of_a_namespace(bench: Bench) -> None:
    make_everything(bench)
    target = bench.folder / "report.tar.gz"
    bench.must("report", "-f", str(target))
    files = unpacked(target.read_bytes())
    assert len(yaml.safe_load(files["brokergroup-report/brokergroups.yaml"])) == 2
    assert not [name for name, text in files.items() if PLANTED in text]


def test_issue_153_what_a_container_said_before_it_was_restarted_is_packed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/rocketmq-operator #153: the operator was restarted several times for an unknown reason.

    Every container is asked for: an API server refuses a log without a container's name where a pod has two.
    """
    asked: list[tuple[str, str, bool]] = []

    def log(_: Cluster, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        asked.append((f"{namespace}/{pod}", container, previous))
        return f"password={PLANTED} {lines} lines"

    monkeypatch.setattr(Cluster, "log", log)
    labels, place = {"brokergroup.dev/component": "operator"}, f"{bench.namespace}/operator-0"
    containers = [{"name": name, "image": "o:1"} for name in ("operator", "proxy")]
    bench.create(Pod, "operator-0", metadata={"labels": labels}, spec={"containers": containers})
    statuses = [
        {"name": "operator", "restartCount": 3, "image": "o:1", "imageID": "", "ready": True},
        {"name": "proxy", "restartCount": 0, "image": "o:1", "imageID": "", "ready": True},
    ]
    bench.set_status(Pod, "operator-0", {"containerStatuses": statuses})
    target = bench.folder / "report.tar.gz"
    try:
        bench.must("report", "-f", str(target))
    finally:
        bench.api("DELETE", bench.path(Pod, "operator-0"))
    # The API is shared: other tests may have pods of operators too.
    assert [one for one in asked if one[0] == place] == [
        (place, "operator", False),
        (place, "operator", True),
        (place, "proxy", False),
    ]
    logs = {name: text for name, text in unpacked(target.read_bytes()).items() if f"/logs/{bench.namespace}/" in name}
    assert {name.rpartition("/")[2] for name in logs} == {
        "operator-0.operator.log", "operator-0.operator.previous.log", "operator-0.proxy.log",
    }  # fmt: skip
    assert not [text for text in logs.values() if PLANTED in text]
