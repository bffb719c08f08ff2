"""`kubectl brokergroup dashboard`: which pod, which port, and what it says where there is none. kubectl is one of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from brokergroup_operator.kubectl.command_line import CannotConnectError, NotFoundError, UsageError
from brokergroup_operator.kubectl.main import app
from brokergroup_operator.kubectl.operator_pods import page_of

if TYPE_CHECKING:
    from pathlib import Path


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
    assert page_of(pods) == ("brokergroup-system", "op-2", 9990)


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
    monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None, options: tuple[str, ...] = ("--no-browser",)
) -> Any:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("brokergroup_operator.kubectl.cluster.Cluster.__init__", lambda *_: None)
    monkeypatch.setattr("brokergroup_operator.kubectl.operator_pods.operator_pods", lambda _: [pod("op-0")])
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
