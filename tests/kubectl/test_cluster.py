"""The way to the API server: the kubeconfig as kubectl reads it, and each failure in one line with an exit code of its own."""

from __future__ import annotations

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kubectl import command_line, kubeconfig
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation
from brokergroup_operator.kubectl.command_line import CannotConnectError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubectl.bench import Bench


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
        (
            403,
            {"kind": "Status", "message": 'brokergroups is forbidden: User "u" cannot list'},
            4,
            'User "u" cannot list',
        ),
        (401, {"kind": "Status", "message": "Unauthorized"}, 4, "Unauthorized"),
        (
            404,
            {"kind": "Status", "message": "the server could not find the requested resource"},
            3,
            "does not know this kind",
        ),
        (503, "upstream is away", 6, "upstream is away"),
    ],
)
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
    assert {
        name: base64.b64decode(item._data) if hasattr(item, "_data") else item.bytes() for name, item in user.items()
    } == {
        "client-certificate": b"CERT",
        "client-key": b"KEY",
    }


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "print('no json')", "print('{}')"])
def test_a_log_in_program_that_does_not_work_is_named(tmp_path: Path, program: str) -> None:
    with pytest.raises(CannotConnectError, match="log-in program"):
        log_in(tmp_path, program)
