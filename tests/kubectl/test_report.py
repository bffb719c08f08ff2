"""The report: its content, and secrets that it must never have; and the dashboard."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.kubectl.cluster import BrokerGroupOperation, BrokerGroupState, Cluster, Event, Pod
from brokergroup_operator.kubectl.command_line import CannotConnectError, NotFoundError, UsageError
from brokergroup_operator.kubectl.main import app
from brokergroup_operator.kubectl.operator_pods import PageOfPod, page_of
from brokergroup_operator.kubectl.report import REDACTED, _is_about, archive, redacted, redacted_text
from tests.page.scripted_plane import ScriptedPlane
from tests.page.served import served
from tests.support.opened_page import PageNotOpenedError, document, group_on, opened_page
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

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


SECRET_REF = {"secretKeyRef": {"name": "orders-keys", "key": "accessKey"}}
FULL_OF_SECRETS: dict[str, Any] = {
    "metadata": {
        "name": "orders-1", "managedFields": [{"x": 1}],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": PLANTED, "brokergroup.dev/revision": "r1",
            "example.dev/api-token": PLANTED,
        },
    },
    "spec": {
        "credentialsSecretRef": {"name": "orders-keys"}, "automountServiceAccountToken": False,
        "containers": [{
            "env": [
                {"name": "BROKER_SECRET_KEY", "value": PLANTED}, {"name": "BROKER_ACCESS_KEY", "valueFrom": SECRET_REF},
                {"name": "JAVA_OPTS", "value": f"-Dpassword={PLANTED} -Xmx1g"},
            ],
            "args": [f"--token={PLANTED}"],
        }],
        "config": {"aclSecretKey": PLANTED, "fileReservedTime": "24"},
    },
    "record": {"replicas": [{"brokerId": 1, "registerCheckCode": PLANTED}]},
}  # fmt: skip


def test_an_object_keeps_names_and_loses_values() -> None:
    said = redacted(FULL_OF_SECRETS)
    assert PLANTED not in str(said)
    annotations = {"brokergroup.dev/revision": "r1", "example.dev/api-token": REDACTED}
    assert said["metadata"] == {"name": "orders-1", "annotations": annotations}
    spec = said["spec"]
    assert (spec["credentialsSecretRef"], spec["automountServiceAccountToken"]) == ({"name": "orders-keys"}, False)
    assert spec["containers"][0]["env"][1]["valueFrom"] == SECRET_REF
    assert spec["containers"][0]["env"][2]["value"].endswith("-Xmx1g")
    assert spec["config"] == {"aclSecretKey": REDACTED, "fileReservedTime": "24"}
    assert said["record"]["replicas"] == [{"brokerId": 1, "registerCheckCode": REDACTED}]


def test_the_file_is_for_its_owner_alone(bench: Bench) -> None:
    bench.create_group()
    target = bench.folder / "report.tar.gz"
    target.touch(mode=0o644)
    for _ in range(2):
        bench.must("report", "orders", "-f", str(target))
        assert target.stat().st_mode & 0o777 == 0o600
        target.unlink()


@pytest.mark.parametrize(
    ("name", "file", "code", "words"),
    [
        ("orders", "nowhere/report.tar.gz", 2, "nowhere/report.tar.gz: No such file or directory"),
        ("order", "report.tar.gz", 3, "brokergroup order: neither it nor anything of it was found in namespace {namespace}"),
    ],
    ids=["a file that cannot be written", "a group of which there is nothing"],
)  # fmt: skip
def test_no_report(bench: Bench, name: str, file: str, code: int, words: str) -> None:
    make_everything(bench)
    said = bench.run("report", name, "-f", str(bench.folder / file))
    assert said.code == code
    assert words.format(namespace=bench.namespace) in said.err
    assert not (bench.folder / file).exists()


def unpacked(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_an_archive_is_for_its_owner_alone() -> None:
    content = archive([("a.yaml", "x: 1\n")])
    assert unpacked(content) == {"brokergroup-report/a.yaml": "x: 1\n"}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getmember("brokergroup-report/a.yaml").mode == 0o600


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
    expected = [(place, "operator", False), (place, "operator", True), (place, "proxy", False)]
    assert [one for one in asked if one[0] == place] == expected
    logs = {name: text for name, text in unpacked(target.read_bytes()).items() if f"/logs/{bench.namespace}/" in name}
    assert {name.rpartition("/")[2] for name in logs} == {
        "operator-0.operator.log", "operator-0.operator.previous.log", "operator-0.proxy.log",
    }  # fmt: skip
    assert not [text for text in logs.values() if PLANTED in text]


PLUGIN = Path(sys.executable).with_name("kubectl-brokergroup")
# `kubectl port-forward ... pod/NAME LOCAL:REMOTE`, where the pod's loopback is this machine's.
KUBECTL = """#!{python}
import asyncio, sys
local, remote = map(int, sys.argv[-1].split(":"))
assert sys.argv[1:3] == ["port-forward", "--namespace"] and sys.argv[4] == "pod/op-1", sys.argv

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def forward(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", remote)
    await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(forward, "127.0.0.1", local) as server:
        print(f"Forwarding from 127.0.0.1:{{local}} -> {{remote}}", flush=True)
        await server.serve_forever()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
"""


@contextmanager
def operator_pods_in(bench: Bench, *pods: dict[str, Any]) -> Iterator[None]:
    """In the embedded API; other tests look for an operator there too."""
    try:
        for one in pods:
            name = one["metadata"]["name"]
            labels = {"brokergroup.dev/component": "operator"}
            containers = [{"image": "operator", **container} for container in one["spec"]["containers"]]
            bench.create(Pod, name, metadata={"labels": labels}, spec={"containers": containers})
            bench.set_status(Pod, name, one["status"])
        yield
    finally:
        for one in bench.items(Pod):
            bench.api("DELETE", f"{bench.path(Pod, one['metadata']['name'])}?gracePeriodSeconds=0")


def environment_of(bench: Bench) -> dict[str, str]:
    kubectl = bench.folder / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable), encoding="utf-8")
    kubectl.chmod(0o755)
    path = os.pathsep.join([str(bench.folder), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(bench.kubeconfig)}


def test_the_page_of_the_operator_in_the_api_is_forwarded_and_opened(bench: Bench) -> None:
    """The pods are an API server's, the page is the operator's; kubectl and the browser are stand-ins. Whole: `make test-node`."""
    local = free_port()
    with (
        served(ScriptedPlane(groups=2)) as page,
        operator_pods_in(bench, pod("op-0", ready=False), pod("op-1", listen=f"127.0.0.1:{page.page.port}")),
        opened_page(f"{PLUGIN} dashboard --port {local}", environment_of(bench), bench.folder) as address,
    ):
        assert address == f"http://localhost:{local}/"
        assert "<title>Broker groups</title>" in document(address)
        assert group_on(address, "ns-0/orders-0000")["master"] == 1


def test_what_ends_without_a_browser_is_told(bench: Bench) -> None:
    with (
        pytest.raises(PageNotOpenedError, match="no pod of the operator is in the cluster"),
        opened_page(f"{PLUGIN} dashboard", environment_of(bench), bench.folder),
    ):
        pass


def pod(name: str, *, ready: bool = True, listen: str | None = "127.0.0.1:9880") -> dict[str, Any]:
    arguments = ["operator", *([f"--page-listen={listen}"] if listen else [])]
    return {
        "metadata": {"namespace": "brokergroup-system", "name": name},
        "spec": {"containers": [{"name": "operator", "args": arguments}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


@pytest.mark.parametrize("listen", ["0.0.0.0:9990", "[::]:9990", "[::1]:9990"])
def test_the_first_ready_pod_with_a_page_is_taken(listen: str) -> None:
    pods = [pod("op-0", ready=False), pod("op-1", listen=None), pod("op-2", listen=listen)]
    assert page_of(pods) == PageOfPod("brokergroup-system", "op-2", 9990, "http")


def test_a_page_over_tls_is_opened_over_tls_also_behind_a_meshs_container() -> None:
    """With page.tlsSecretName the address began with http://, and nothing answered there."""
    secured = pod("op-0", listen="[::]:9880")
    [operator] = secured["spec"]["containers"]
    operator["args"] += ["--page-tls-certificate=/etc/page/tls.crt", "--page-tls-key=/etc/page/tls.key"]
    secured["spec"]["containers"] = [{"name": "istio-proxy"}, operator]
    assert page_of([secured]) == PageOfPod("brokergroup-system", "op-0", 9880, "https")


@pytest.mark.parametrize(
    ("pods", "word"),
    [
        ([], "no pod of the operator"),
        ([pod("op-0", ready=False)], "none of the 1 operator pods is ready"),
        ([pod("op-0", listen=None)], r"page\.enabled=true"),
    ],
)
def test_what_is_missing_is_named(pods: list[dict[str, Any]], word: str) -> None:
    with pytest.raises(NotFoundError, match=word):
        page_of(pods)


def run(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    script: str | None,
    options: tuple[str, ...] = ("--no-browser",),
    further: tuple[str, ...] = (),
) -> Any:
    operator_pod = pod("op-0")
    operator_pod["spec"]["containers"][0]["args"] += further
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("brokergroup_operator.kubectl.cluster.Cluster.__init__", lambda *_: None)
    monkeypatch.setattr("brokergroup_operator.kubectl.operator_pods.operator_pods", lambda _: [operator_pod])
    if script is not None:
        (folder / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "kubectl").chmod(0o755)
    return CliRunner().invoke(app, ["dashboard", *options, "--port", "8001", "--context", "here"])


def test_the_port_is_forwarded_and_the_address_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    result = run(monkeypatch, tmp_path, f'echo "$@" > {asked}; echo "Forwarding from 127.0.0.1:8001 -> 9880"')
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("http://localhost:8001/ ")
    assert asked.read_text().strip() == "--context here port-forward --namespace brokergroup-system pod/op-0 8001:9880"


def test_the_address_of_a_page_over_tls_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forwards = 'echo "Forwarding from 127.0.0.1:8001 -> 9880"'
    secured = ("--page-tls-certificate=/etc/page/tls.crt", "--page-tls-key=/etc/page/tls.key")
    result = run(monkeypatch, tmp_path, forwards, further=secured)
    assert result.stdout.startswith("https://localhost:8001/ ")


def test_the_page_is_opened_once_the_port_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    assert run(monkeypatch, tmp_path, "exit 1", ()).exception is not None
    assert opened == []
    assert run(monkeypatch, tmp_path, 'echo "Forwarding from 127.0.0.1:8001 -> 9880"', ()).exit_code == 0
    assert opened == ["http://localhost:8001/"]


def test_a_kubectl_that_forwards_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, tmp_path, "exit 1")
    assert isinstance(result.exception, CannotConnectError)
    assert "exit code 1" in str(result.exception)


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert isinstance(run(monkeypatch, tmp_path, None).exception, UsageError)
