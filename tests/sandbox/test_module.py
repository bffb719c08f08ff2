"""``python -m kube_sandbox``, as the tests of another operator use it: a kind and a pod that are not ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.client import PODS, ApiError, KubeClient, Resource
from kube_sandbox.kubelet.process import kill_leftovers
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROOT = Path(__file__).parents[2]
THINGS = Resource("example.dev", "v1", "things", "Thing")
AT_HOME = {"name": "one", "namespace": "default"}
DEADLINE_SECONDS = 120.0


async def eventually(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.05)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kube_sandbox", *arguments],
        # Its root alone: nothing of the operator is within its reach.
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stderr=subprocess.PIPE,
        text=True,
    )


REAL = pytest.param("kube-apiserver", marks=pytest.mark.real("etcd", "kube-apiserver"))


@pytest.fixture(params=["embedded", REAL])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KubeClient]:
    data = tmp_path / "data"
    arguments = ["--data-dir", str(data), "--crds", str(Path(__file__).parent / "crds"), "--image", "hello:*"]
    if request.param == "kube-apiserver":
        programs = tmp_path / "programs"
        programs.mkdir()
        for program in (install.etcd_program(), install.kubernetes_folder() / "kube-apiserver"):
            (programs / program.name).symlink_to(program)
        arguments += ["--api-server", str(programs)]
    process = start(*arguments)
    try:

        async def ready() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return (data / "kubeconfig").exists()

        await eventually(ready)
        async with KubeClient.from_kubeconfig(data / "kubeconfig") as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert kill_leftovers(data / "api") == [], "etcd and kube-apiserver ended with it"


async def test_a_kind_and_a_pod_that_are_not_ours(client: KubeClient) -> None:
    await client.create(THINGS, {"metadata": AT_HOME, "spec": {"mode": "Small"}})
    (thing,), _ = await client.list(THINGS)
    assert thing["spec"] == {"mode": "Small", "replicas": 3}, "the default of its schema"
    with pytest.raises(ApiError, match="mode is immutable"):
        await client.patch(THINGS, "one", {"spec": {"mode": "Big"}}, namespace="default")

    main = {"name": "main", "image": "hello:1", "command": ["sh", "-c", "echo hello; exec sleep 1000"]}
    await client.create(PODS, {"metadata": AT_HOME, "spec": {"containers": [main]}})

    async def runs() -> int:
        found = await client.get(PODS, "one", namespace="default")
        (status,) = found["status"].get("containerStatuses") or [{"state": {}}]
        return int(status["containerID"].removeprefix("process://")) if "running" in status["state"] else 0

    pid = await eventually(runs)
    uid = (await client.get(PODS, "one", namespace="default"))["metadata"]["uid"]
    await client.delete(PODS, "one", namespace="default", grace_period_seconds=1, uid=uid)

    async def gone() -> bool:
        return not (await client.list(PODS))[0]

    await eventually(gone)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_options_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, says in (
        (["--data-dir", str(tmp_path / "file")], f"'{tmp_path / 'file'}'"),
        (["--data-dir", str(tmp_path), "--image", "a:*=/no/such"], "'/no/such' is no folder"),
        (["--data-dir", str(tmp_path), "--crds", str(tmp_path / "no")], f"'{tmp_path / 'no'}' is no folder"),
        (["--data-dir", str(tmp_path), "--api-server", str(tmp_path)], "expected the programs etcd, kube-apiserver"),
        ([], "--data-dir"),
    ):
        process = start(*arguments)
        error = process.communicate(timeout=DEADLINE_SECONDS)[1]
        assert (process.returncode, says in error, "Traceback" in error) == (2, True, False), error
