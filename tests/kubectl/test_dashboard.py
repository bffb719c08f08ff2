"""`kubectl brokergroup dashboard`: it forwards and opens a pod's page, or prints the reason why not."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from brokergroup_operator.kubectl.cluster import Pod
from brokergroup_operator.kubectl.command_line import CannotConnectError, NotFoundError, UsageError
from brokergroup_operator.kubectl.main import app
from brokergroup_operator.kubectl.operator_pods import page_of
from tests.page.scripted_plane import ScriptedPlane
from tests.page.served import served
from tests.support.opened_page import PageNotOpenedError, document, group_on, opened_page
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kubectl.bench import Bench

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
