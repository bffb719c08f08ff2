"""The kubeconfig as kubectl reads it: several files, relative paths, tokens, log-in programs."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kubectl import kubeconfig
from brokergroup_operator.kubectl.command_line import CannotConnectError

if TYPE_CHECKING:
    from pathlib import Path


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
