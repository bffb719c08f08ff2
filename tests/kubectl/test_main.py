"""The plugin's entry: its verbs, its kubeconfig and its requests."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kubectl import command_line, kubeconfig
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Pod
from brokergroup_operator.kubectl.command_line import CannotConnectError, PluginError
from brokergroup_operator.kubectl.main import complete, verb_names
from tests.kubectl.bench import ACCEPTED, REFUSED, REFUSED_IDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubectl.bench import Bench


# Modules that only the operator, the other commands, or drawing need.
HEAVY = {
    "aiohttp", "kopf", "kubernetes", "msgspec", "prometheus_client", "pyspark", "rich", "structlog", "uvloop",
    "controller_core", "kube_sandbox", "metric_names", "rocketmq_remoting", "rocketmq_replica", "sla_reports",
}  # fmt: skip
OURS = {"api", "json_object", "kubectl", "option_groups"}
PROGRAM = """
import json, sys
from brokergroup_operator.kubectl.main import app
try:
    app(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def modules(bench: Bench, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"KUBECONFIG": str(bench.kubeconfig), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(found)


@pytest.mark.parametrize(
    "arguments", [("status", "orders"), ("status",), ("top", "--once"), ("switchover", "orders"), ("pause", "orders")]
)
def test_a_verb_brings_nothing_heavy(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.create_group()
    loaded = modules(bench, *arguments)
    assert "pykube.http" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    ours = {name.split(".")[1] for name in loaded if name.startswith("brokergroup_operator.")}
    assert ours <= OURS


def test_help_asks_no_cluster_and_needs_no_client(bench: Bench) -> None:
    loaded = modules(bench, "--help")
    assert "typer" in loaded
    assert not {"pykube", "requests", "yaml"} & {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize("arguments", ACCEPTED)
def test_what_is_generated_is_accepted(bench: Bench, arguments: tuple[str, ...]) -> None:
    manifest = yaml.safe_load(bench.must("generate", "orders", "-n", bench.namespace, *arguments))
    made = bench.api("POST", f"{bench.path(BrokerGroup)}?fieldValidation=Strict", manifest)
    assert made["metadata"]["name"] == "orders"


@pytest.mark.parametrize(("group", "arguments", "field"), REFUSED, ids=REFUSED_IDS)
def test_what_an_api_server_would_refuse_is_not_generated(
    bench: Bench, group: str, arguments: tuple[str, ...], field: str
) -> None:
    said = bench.run("generate", group, *arguments)
    assert (said.code, said.out) == (2, "")
    assert f"an API server would refuse it: {field}: " in said.err


def test_a_namespace_that_cannot_be_is_not_generated_either(bench: Bench) -> None:
    said = bench.run("generate", "orders", "-n", "my.namespace")
    assert said.code == 2
    assert "metadata.namespace: " in said.err


def test_versions(bench: Bench) -> None:
    assert bench.must("version", "--client").split() == ["plugin", version("brokergroup-operator")]
    lines = bench.must("version").splitlines()
    assert [line.split()[0] for line in lines] == ["plugin", "operator", "kubernetes"]
    # The release's name does not matter (tests/real/test_chart.py checks the label in the chart).
    labels = {
        "app.kubernetes.io/name": "somebody-elses-choice",
        "brokergroup.dev/component": "operator",
        "app.kubernetes.io/version": "0.9.9",
    }
    bench.create(Pod, "operator-0", metadata={"labels": labels}, spec={"containers": [{"name": "o", "image": "o:1"}]})
    try:
        assert "0.9.9" in bench.must("version", "-o", "json")
    finally:
        bench.api("DELETE", bench.path(Pod, "operator-0"))


def test_completion_knows_verbs_options_and_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    bench.create_group()
    bench.create_group("other", status={})
    assert complete(["sw"]) == ["switchover"]
    assert set(complete([""])) == set(verb_names())
    assert complete(["status", "o"]) == ["orders", "other"]
    assert complete(["status", "-n", "default", ""]) == []
    assert complete(["status", "--namespace=" + bench.namespace, "ot"]) == ["other"]
    assert "--kill-master" in complete(["drill", "--"])
    assert complete(["status", "orders", ""]) == []
    assert complete(["version", ""]) == []
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert complete(["status", "--context", "none", ""]) == []


def test_completion_knows_which_word_is_an_options_value(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status -n shop <TAB>` took `shop` for the group, and completed nothing; `status -n <TAB>` completed groups."""
    bench.create_group()
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    for before in (["-n", bench.namespace], ["--context", "here", "-w"], ["--watch", "--namespace", bench.namespace]):
        assert complete(["status", *before, ""]) == ["orders"], before
        assert complete(["status", *before, "orders", ""]) == [], before
    assert complete(["switchover", "--to", "3", "--wait", ""]) == ["orders"]
    for option in ("-n", "--namespace", "--context", "--kubeconfig", "-o"):
        assert complete(["status", option, ""]) == [], option
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert complete(["status", "--kubeconfig", str(bench.kubeconfig), ""]) == ["orders"]


def test_the_completion_program_runs_the_plugin(bench: Bench) -> None:
    assert bench.must("completion").splitlines()[-1] == 'exec kubectl-brokergroup __complete "$@"'


@pytest.mark.parametrize(("words", "option"), [("migrate plan", "--controller"), ("adopt claims", "--claim")])
def test_migrate_and_adopt_are_the_other_commands(bench: Bench, words: str, option: str) -> None:
    said = bench.run(*words.split(), "--help")
    assert said.code == 0
    assert option in said.out


def test_the_verbs_are_those_that_are_promised() -> None:
    assert verb_names() == [
        "adopt", "backup", "completion", "dashboard", "decommission", "drill", "elect", "explain", "generate", "hibernate",
        "history", "lag", "migrate", "pause", "rebuild", "release", "report", "restart", "resume", "retire", "start-broker",
        "status", "stop-broker", "switchover", "top", "upgrade", "version", "wake",
    ]  # fmt: skip


def one_line(text: str) -> str:
    assert len(text.strip().splitlines()) == 1, text
    return text


def test_every_kind_of_trouble_has_its_own_exit_code() -> None:
    kinds = [kind for kind in vars(command_line).values() if isinstance(kind, type) and issubclass(kind, PluginError)]
    codes = sorted(kind.exit_code for kind in kinds)
    assert codes == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_group_that_is_not_there(bench: Bench) -> None:
    for arguments in (("status", "nobody"), ("switchover", "nobody"), ("pause", "nobody"), ("explain", "nobody")):
        said = bench.run(*arguments)
        assert said.code == 3
        assert one_line(said.err) == f"brokergroups {bench.namespace}/nobody: not found"
    assert not bench.items(BrokerGroupOperation)


@pytest.mark.parametrize("name", ["../brokergroups/orders", "orders?watch=true", "orders#", "a b", "ÄÖ"])
def test_a_name_does_not_lead_elsewhere(bench: Bench, name: str) -> None:
    bench.create_group()
    said = bench.run("pause", name)
    assert said.code == 3
    assert one_line(said.err).startswith(f"brokergroups {bench.namespace}/{name}: ")
    assert not (bench.get(BrokerGroup, "orders")["spec"].get("maintenance") or {}).get("paused")


def test_what_the_kind_refuses_is_told(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("restart", "orders", *[str(number) for number in range(1, 80)])
    assert said.code == 6
    assert "brokerIds" in said.err


def test_nobody_answers(bench: Bench) -> None:
    bench.write_kubeconfig("http://127.0.0.1:1")
    said = bench.run("status")
    assert said.code == 5
    assert one_line(said.err).startswith("cannot reach http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "kubeconfig: "),
        (b"[]", "expected a mapping with clusters, users and contexts"),
        (b"contexts: []", "no context '', expected one of: none"),
        (b"contexts: [{name: a, context: {cluster: x}}]\ncurrent-context: a\nclusters: []", "context 'a'"),
        (b"\xff\xfe\x00", "no UTF-8"),
        (b"[" * 100_000, "recursion"),
        (b"clusters: 5", "clusters is 5, expected a list"),
        (b"users: [5]", "users has 5, expected a name and a mapping user"),
        (b"contexts: [{context: {}}]", "contexts has {'context': {}}, expected a name and a mapping context"),
        (b"clusters: [{name: a, cluster: b}]", "expected a name and a mapping cluster"),
        (
            b"contexts: [{name: a, context: {user: a}}]\ncurrent-context: a\nusers: [{name: a, user: {tokenFile: none}}]",
            "none: [Errno 2] No such file",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(bench: Bench, text: bytes, why: str) -> None:
    bench.kubeconfig.write_bytes(text)
    said = bench.run("status")
    assert said.code == 5
    assert why in one_line(said.err)


def test_no_kubeconfig_at_all(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    bench.kubeconfig.unlink()
    assert "expected one at $KUBECONFIG or ~/.kube/config" in one_line(bench.run("status").err)
    said = bench.run("status", "--kubeconfig", str(tmp_path / "none"))
    assert (said.code, "is not a file" in said.err) == (5, True)
    said = bench.run("status", "--context", "unknown")
    assert said.code == 5


def test_an_unknown_context_names_those_that_there_are(bench: Bench) -> None:
    said = bench.run("status", "--context", "there")
    assert said.code == 5
    assert said.err == "kubeconfig: no context 'there', expected one of: here, elsewhere"


class Refusing(BaseHTTPRequestHandler):
    """An API server with one answer."""

    status = 403
    body: Any = None

    def do_GET(self) -> None:
        text = json.dumps(self.body) if isinstance(self.body, dict) else str(self.body)
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def refusing(bench: Bench) -> Iterator[type[Refusing]]:
    handler = type("Handler", (Refusing,), {})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    bench.write_kubeconfig(f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (403, {"kind": "Status", "message": 'brokergroups is forbidden: User "u" cannot list'}, 4, 'User "u" cannot list'),
        (401, {"kind": "Status", "message": "Unauthorized"}, 4, "Unauthorized"),
        (404, {"kind": "Status", "message": "the server could not find the requested resource"}, 3, "does not know this kind"),
        (503, "upstream is away", 6, "upstream is away"),
    ],
)  # fmt: skip
def test_refusals(bench: Bench, refusing: type[Refusing], status: int, body: Any, code: int, words: str) -> None:
    refusing.status, refusing.body = status, body
    said = bench.run("status")
    assert said.code == code
    assert words in one_line(said.err)


def write(
    path: Path,
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    context: str = "a",
    current: str = "",
) -> Path:
    path.parent.mkdir(exist_ok=True)
    document = {
        "clusters": [{"name": f"c-{context}", "cluster": cluster or {"server": f"https://{context}"}}],
        "users": [{"name": f"u-{context}", "user": user or {}}],
        "contexts": [
            {
                "name": context,
                "context": {"cluster": f"c-{context}", "user": f"u-{context}", "namespace": f"ns-{context}"},
            }
        ],
        "current-context": current,
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_of_several_files_the_first_that_says_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "one" / "config", context="a")
    second = write(tmp_path / "two" / "config", context="b", current="b")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}:{second}")
    assert kubeconfig.load(None, None).namespace == "ns-b"
    assert kubeconfig.load(None, "a").cluster["server"] == "https://a"
    assert kubeconfig.load(first, "a").namespace == "ns-a"


def test_files_are_relative_to_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "ca.crt").write_text("x", encoding="utf-8")
    path = write(
        tmp_path / "one" / "config", cluster={"server": "https://a", "certificate-authority": "ca.crt"}, current="a"
    )
    assert kubeconfig.load(path, None).cluster["certificate-authority"].filename() == str(tmp_path / "one" / "ca.crt")


def test_a_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n", encoding="utf-8")
    path = write(tmp_path / "config", user={"tokenFile": "token"}, current="a")
    assert kubeconfig.load(path, None).user["token"] == "abc"


def log_in(tmp_path: Path, program: str) -> dict[str, Any]:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", program],
            "env": [{"name": "WHO", "value": "me"}],
        }
    }
    return dict(kubeconfig.load(write(tmp_path / "config", user=user, current="a"), None).user)


def test_a_log_in_program_gives_the_token(tmp_path: Path) -> None:
    program = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "print(json.dumps({'status': {'token': os.environ['WHO'] + ' ' + asked['apiVersion']}}))"
    )
    assert log_in(tmp_path, program) == {"token": "me client.authentication.k8s.io/v1"}


def test_a_log_in_program_gives_a_certificate(tmp_path: Path) -> None:
    answer = {"status": {"clientCertificateData": "CERT", "clientKeyData": "KEY"}}
    user = log_in(tmp_path, f"print({json.dumps(json.dumps(answer))})")
    raw = {name: base64.b64decode(one._data) if hasattr(one, "_data") else one.bytes() for name, one in user.items()}
    assert raw == {"client-certificate": b"CERT", "client-key": b"KEY"}


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "print('no json')", "print('{}')"])
def test_a_log_in_program_that_does_not_work_is_named(tmp_path: Path, program: str) -> None:
    with pytest.raises(CannotConnectError, match="log-in program"):
        log_in(tmp_path, program)
