"""The command lines: refusals and their texts, a pod's own address, and the entry points. A refusal is never a traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from brokergroup_operator.api.brokergroup import BrokerGroupSpec, Implementation
from brokergroup_operator.cli import entry
from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.operator_command import OperatorOptions, own_address
from brokergroup_operator.cli.operator_process import reconcile_settings
from brokergroup_operator.cli.running import parse_endpoint
from brokergroup_operator.cli.security_options import SecurityOptions
from brokergroup_operator.controller.directory import kubernetes_directory
from brokergroup_operator.controller.settings import AdminCredentialsError, SecuritySettings, read_credentials
from brokergroup_operator.folder_lock import FolderLock
from brokergroup_operator.kube.answers import decode
from brokergroup_operator.kube.settings import KubeconfigError, settings_from_kubeconfig
from brokergroup_operator.observe.incidents import _documents
from brokergroup_operator.reconcile.render.containers import command
from brokergroup_operator.records.file import read_record_file
from brokergroup_operator.records.store import RecordCorruptError
from rocketmq_remoting.tls import ClientCertificates, TlsFiles, TlsMode, TlsServerSettings
from rocketmq_replica import broker_container, process
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.side_files import load_queue_offsets
from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups
from rocketmq_replica.topics import Topics
from tests.security.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable


ADDRESSES = ["operator-0.ns.svc:9878", "operator-1.ns.svc:9878"]


def test_every_subcommand_explains_itself() -> None:
    for name in ("operator", "controller", "replica", "sandbox", "demo"):
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("text", ["9878", "localhost:", ":9878", "localhost:port", "localhost:65536"])
def test_what_is_no_endpoint_is_refused_with_its_option_and_value(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected host:port") as refused:
        parse_endpoint(text, "--listen")
    assert text in refused.value.message
    assert refused.value.param_hint == "--listen"


def test_an_ipv6_endpoint_is_listened_at_without_its_brackets() -> None:
    assert parse_endpoint("[::1]:9878", "--listen") == ("::1", 9878)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--listen", "::1:19879"], "--listen: '::1:19879': expected an IPv6 address in brackets: [::1]:19879"),
        (["--listen", "[::1]:0", "--metrics-listen", "[::1]"], "--metrics-listen: '[::1]': expected host:port"),
        (["--listen", "[::1]:0", "--name-server", "fd00::1:9876"], "--name-server: 'fd00::1:9876': expected an IPv6"),
        (["--listen", "[::1]:0", "--name-server", "[::1]:0"], "--name-server: '[::1]:0': expected host:port"),
        (["--listen", "[::]:0", "--advertise", "[fd00::1"], "--advertise: '[fd00::1': expected host:port"),
        (["--listen", "[::]:0"], "listen_host is '::': expected the host:port by which brokers reach this controller"),
    ],
)
def test_a_controller_refuses_an_address_in_words(arguments: list[str], told: str) -> None:
    """`--listen '[::1]:…'` ended in a traceback of socket.gaierror."""
    result = CliRunner().invoke(app, ["controller", *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


def taken_port_is_told(address: str, family: socket.AddressFamily, told: str) -> None:
    with socket.create_server((address, 0), family=family) as taken:
        port = taken.getsockname()[1]
        listen = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        result = CliRunner().invoke(app, ["controller", "--listen", listen])
    assert result.exit_code == 1
    assert f"{told.format(port)}: address already in use" in result.output.splitlines()[-1]


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    taken_port_is_told("127.0.0.1", socket.AF_INET, "('127.0.0.1', {})")


def test_an_ipv6_port_that_is_taken_is_told_in_one_line(ipv6_loopback: str) -> None:
    taken_port_is_told(ipv6_loopback, socket.AF_INET6, "('::1', {}, 0, 0)")


@pytest.mark.parametrize(
    ("place", "says"),
    [("FILE", "File exists; expected a folder"), ("FILE/below", "Not a directory; expected"), ("/proc", "expected a")],
)
def test_a_store_that_is_no_folder_to_write_in(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FILE", str(tmp_path / "file"))
    for told in (says, place):
        refused("controller", "--store", f"file:{place}", "--listen", "127.0.0.1:0", code=1, says=told)


def test_a_pod_advertises_the_address_of_its_own_ordinal() -> None:
    assert own_address("operator-1", ADDRESSES) == ADDRESSES[1]
    assert own_address("anything", ADDRESSES[:1]) == ADDRESSES[0]


@pytest.mark.parametrize("identity", ["operator-2", "laptop"])
def test_a_pod_that_cannot_tell_its_address_says_so(identity: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected --advertise host:port"):
        own_address(identity, ADDRESSES)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rocketmq_version": "5.1.0"}, "rocketmq_version is '5.1.0', expected another: brokers before 5.1.1"),
        ({"rocketmq_images": ["5.5.0"]}, "'5.5.0', expected VERSION=IMAGE, like 5.5.0=apache/rocketmq:5.5.0"),
        ({"rocketmq_images": ["latest=a/b:1"]}, "'latest=a/b:1', expected VERSION=IMAGE"),
        ({"rocketmq_images": ["5.3.3=a:1"], "only_listed_versions": True}, "limited to 5.3.3"),
        ({"rocketmq_images": ["5.5.0=a:1", "5.5.0=a:2"]}, "lists 5.5.0 twice"),
        ({"only_listed_versions": True}, "expected at least one version that may run"),
    ],
)
def test_versions_that_no_group_could_run_end_the_operator_at_its_start(options: dict[str, Any], says: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        OperatorOptions(controller_addresses=ADDRESSES, identity="operator-0", **options).checked()
    assert says in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.org"])
def test_the_sandbox_listens_on_loopback_only(tmp_path: Path, host: str) -> None:
    result = CliRunner().invoke(app, ["sandbox", "--data-dir", str(tmp_path / "data"), "--host", host])
    assert result.exit_code == 2
    assert f"'{host}': expected a loopback address" in " ".join(result.output.split())
    assert not (tmp_path / "data").exists()


def test_an_operator_without_a_cluster_says_what_it_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for options, expected in (
        (("--controller-address", "one"), "Invalid value for --controller-address: 'one': expected host:port"),
        (("--controller-address", "one:1"), "KUBERNETES_SERVICE_PORT are not set: not inside a cluster"),
        (("--controller-address", "one:1", "--kubeconfig", str(tmp_path / "no")), "does not exist"),
    ):
        assert expected in refused_by("operator", *options)


def test_an_operator_whose_api_does_not_answer_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_directory, "SYNC_DEADLINE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # One port accepts connections without an answer; the port of a closed listener refuses them.
        silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refusing = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for url in (silent, refusing):
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_text(json.dumps(kubeconfig_of(url)), encoding="utf-8")
            options = ("--controller-address", "one:1", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig))
            result = CliRunner().invoke(app, ["operator", *options])
            assert result.exit_code == 1, result.output
            told = f"error: the Kubernetes API at {url} gave no list of brokergroups within 0.3 s: "
            assert result.stderr.splitlines()[-1].startswith(told)
    assert "Cannot connect" in result.stderr or "onnection refused" in result.stderr


def kubeconfig_of(url: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }


def refused_by(*arguments: str) -> str:
    """Return a command's message when it does not start."""
    result = CliRunner().invoke(app, [*arguments, "--listen", "127.0.0.1:0"])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_tls_options_that_do_not_fit_are_refused_before_anything_listens(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate", encoding="utf-8")
    assert "expected a certificate file and a key file" in refused_by("controller", "--tls-mode", "enforcing")
    assert "both files or neither" in refused_by("controller", "--tls-certificate", str(broken))
    said = refused_by("controller", "--tls-certificate", str(broken), "--tls-key", str(broken))
    assert "expected PEM files that belong together" in said
    assert "expected --tls-certificate" in refused_by("controller", "--tls-client-certificates", "required")


def test_credentials_that_cannot_be_used_are_named_and_not_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"accessKey": "planted-secret"', encoding="utf-8")
    said = refused_by("controller", "--admin-credentials", str(broken))
    assert "accessKey and secretKey" in said
    assert "planted-secret" not in said
    assert "expected --broker-credentials" in refused_by("controller", "--signature", "Required")
    two = tmp_path / "two.json"
    two.write_text('[{"accessKey":"a","secretKey":"b"},{"accessKey":"c","secretKey":"d"}]', encoding="utf-8")
    assert "2 access keys: expected one" in refused_by("controller", "--broker-credentials", str(two))


def test_tls_is_enforced_where_a_certificate_is_given_and_nothing_else_is_said(tmp_path: Path) -> None:
    files = make_authority(tmp_path).issue("controller")
    given = SecurityOptions(tls_certificate=files.certificate, tls_key=files.key, tls_ca=files.ca)
    settings = given.settings()
    assert settings.tls is not None
    assert settings.tls.mode is TlsMode.ENFORCING
    assert settings.broker_tls is None
    assert not settings.open_admin
    plain = SecurityOptions(tls_ca=files.ca).settings()
    assert plain.tls is None
    with pytest.raises(typer.BadParameter, match="optional or required"):
        replace(given, admin_certificate_names=["admin"]).settings()


KUBECONFIGS = {
    "no UTF-8": b"\xff\xfe\x00",
    "no YAML": b"clusters: [",
    "clusters is 5, expected a list": b"clusters: 5\ncontexts: [{name: a, context: {cluster: b}}]\ncurrent-context: a\n",
}


def refused(*arguments: str, code: int, says: str) -> None:
    """Check that a command ends with this code, and that its standard error has this text across line breaks."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert says in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("says", KUBECONFIGS)
def test_a_kubeconfig_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(KUBECONFIGS[says])
    refused(
        *("operator", "--kubeconfig", str(file), "--controller-address", "127.0.0.1:1", "--listen", "127.0.0.1:0"),
        code=2, says=says,
    )  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(file))
    refused("controller", "--store", "kubernetes:default", "--listen", "127.0.0.1:0", code=2, says=says)


def test_a_store_that_another_process_uses(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path / ".lock")
    says = f"another process uses this store: folder {tmp_path} is in use by process {os.getpid()} "
    refused("controller", "--store", f"file:{tmp_path}", "--listen", "127.0.0.1:0", code=1, says=says)
    lock.release()


@pytest.mark.parametrize("option", ["--data-dir", "--kubeconfig"])
@pytest.mark.parametrize("place", ["FILE", "/proc/no"])
def test_a_folder_of_the_sandbox_that_cannot_be_written(tmp_path: Path, option: str, place: str) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FILE", str(tmp_path / "file"))
    arguments = {"--data-dir": str(tmp_path / "data"), option: place if option == "--data-dir" else f"{place}/config"}
    flat = [word for pair in arguments.items() for word in pair]
    refused("sandbox", *flat, code=2, says=f"Invalid value for {option}: '{place}'")


@pytest.mark.parametrize("address", [";;;", "", "a", "a:0x1", "a:²"])
def test_an_operator_address_that_is_none(address: str) -> None:
    says = f"Invalid value for --controller-address: {address!r}: expected host:port"
    refused("operator", "--controller-address", address, code=2, says=says)


@pytest.mark.parametrize("store", ["nonsense", "etcd", "file:", "memory:x", "kubernetes", ""])
def test_a_store_that_is_none(store: str) -> None:
    says = f"Invalid value for --store: store is {store!r}, expected memory or file:<folder>"
    refused("controller", "--store", store, code=2, says=says)
    java = ("--controller", "127.0.0.1:1", "--store", store)
    refused("migrate", "apply", *java, code=2, says=says)
    for verb in ("cut-over", "back"):
        refused("migrate", verb, *java, "--listen", "127.0.0.1:2", code=2, says=says)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a.conf"],
        ["--config", "a.conf", "b.conf"],
        ["--config", "a.conf", "--container-config", "c.conf"],
        ["--container", "--config", "a.conf"],
        ["--container", "--async-learner", "a.conf"],
    ],
)
def test_what_is_neither_one_replica_nor_a_container_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["replica", *arguments])
    assert result.exit_code == 2
    assert "--config" in result.output


def test_each_form_runs_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def one(path: Path, *, async_learner: bool) -> int:
        started.append((path, "learner") if async_learner else path)
        return 0

    def several(paths: list[Path], container_file: Path | None) -> int:
        started.append((paths, container_file))
        return 1

    monkeypatch.setattr(process, "main", one)
    monkeypatch.setattr(broker_container, "main", several)
    assert CliRunner().invoke(app, ["replica", "--config", "a.conf"]).exit_code == 0
    assert CliRunner().invoke(app, ["replica", "--config", "a.conf", "--async-learner"]).exit_code == 0
    assert CliRunner().invoke(app, ["replica", "--container", "a.conf", "b.conf"]).exit_code == 1
    assert CliRunner().invoke(app, ["replica", "--container", "--container-config", "c.conf"]).exit_code == 1
    both = [Path("a.conf"), Path("b.conf")]
    assert started == [Path("a.conf"), (Path("a.conf"), "learner"), (both, None), ([], Path("c.conf"))]


def test_a_container_whose_files_cannot_be_read_ends_with_1(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert broker_container.main([tmp_path / "nowhere.conf"]) == 1
    assert "nowhere.conf: cannot be read" in caplog.text


OPTIONS = OperatorOptions(controller_addresses=["127.0.0.1:9878"], identity="operator-0")


@pytest.mark.parametrize("asked_for", list(ClientCertificates))
def test_pods_are_made_for_what_controllers_ask(tmp_path: Path, asked_for: ClientCertificates) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("PEM of the authority\n", encoding="utf-8")
    files = TlsFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=ca)
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=asked_for)
    made = reconcile_settings(OPTIONS, SecuritySettings(tls=tls))
    assert (made.controller_tls, made.controller_authority) == (True, "PEM of the authority\n")
    assert made.client_certificates_required is (asked_for is ClientCertificates.REQUIRED)


def test_without_tls_nobody_is_asked_for_anything() -> None:
    made = reconcile_settings(OPTIONS, SecuritySettings())
    assert (made.controller_tls, made.controller_authority, made.client_certificates_required) == (False, None, False)


def started(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Return what the console script starts: a replica's arguments, or the name of the command line."""
    found: list[object] = []
    monkeypatch.setattr(sys, "argv", ["brokergroup", *arguments])
    monkeypatch.setattr(process, "main", lambda path, *, async_learner: found.append((str(path), async_learner)))
    monkeypatch.setattr("brokergroup_operator.cli.main.app", lambda: found.append("command line"))
    with suppress(SystemExit):
        entry.main()
    return found.pop()


@pytest.mark.parametrize("learner", [False, True])
def test_a_pods_command_starts_its_replica(monkeypatch: pytest.MonkeyPatch, *, learner: bool) -> None:
    program, *arguments = command(BrokerGroupSpec(implementation=Implementation.PYTHON), learner=learner)
    assert program == "brokergroup"
    assert started(arguments, monkeypatch) == (arguments[2], learner)


@pytest.mark.parametrize(
    "arguments",
    [[], ["operator"], ["replica"], ["replica", "--config"], ["replica", "--config", "a", "b"], ["replica", "--help"]],
)
def test_all_else_is_the_command_lines(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(arguments, monkeypatch) == "command line"


def test_a_replica_loads_no_library_of_the_command_line(tmp_path: Path) -> None:
    program = (
        "import sys; from brokergroup_operator.cli import entry; from rocketmq_replica import process\n"
        f"sys.argv = ['brokergroup', 'replica', '--config', {str(tmp_path / 'broker.conf')!r}]\n"
        "process.main = lambda path, *, async_learner: 7\n"
        "try: entry.main()\n"
        "except SystemExit as end: print(end.code, *{one.partition('.')[0] for one in sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "7"
    assert not {"typer", "rich", "pydantic", "kopf", "kubernetes", "structlog"} & set(told)
    assert "rocketmq_replica" in told


DEEP = b"[" * 100_000 + b"]" * 100_000
READERS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "a group's record": (read_record_file, RecordCorruptError),
    "a kubeconfig": (settings_from_kubeconfig, KubeconfigError),
    "administrators": (read_credentials, AdminCredentialsError),
    "topics": (partial(Topics, system_topics=(), queue_count=1, now_ms=1), StoreFileError),
    "consumer offsets": (ConsumerOffsets, StoreFileError),
    "consumer groups": (partial(SubscriptionGroups, now_ms=1), StoreFileError),
    "delay offsets": (DelayOffsets, StoreFileError),
    "queue offsets": (load_queue_offsets, StoreFileError),
}


@pytest.mark.parametrize("what", READERS)
def test_a_file_that_is_nested_too_deep_is_named(tmp_path: Path, what: str) -> None:
    read, error = READERS[what]
    file = tmp_path / "deep.json"
    file.write_bytes(DEEP)
    with pytest.raises(error, match=r"deep\.json: "):
        read(file)


def test_an_answer_that_is_nested_too_deep_is_a_message_and_no_object() -> None:
    assert decode(b'{"a":' + DEEP + b"}")["message"].startswith('{"a":[[')


def test_a_line_of_the_incident_log_that_is_nested_too_deep_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "incidents.jsonl").write_bytes(DEEP + b'\n{"sequence": 7}\n')
    assert _documents(tmp_path / "incidents.jsonl") == [{"sequence": 7}]
