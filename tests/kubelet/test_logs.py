"""``kubectl logs``: all of it, its last lines, and what is still being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kube_sandbox.kubelet.files import NoSuchLogError
from tests.kubelet.node_under_test import NAMESPACE, is_running, pod_object

if TYPE_CHECKING:
    from tests.kubelet.node_under_test import Node


async def read(node: Node, tail_lines: int | None = None) -> str:
    chunks = [chunk async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", tail_lines, follow=False)]
    return b"".join(chunks).decode()


async def test_whole_and_last_lines(node: Node) -> None:
    await node.create(pod_object("a", "seq 1 30000; exec sleep 1000"))
    await node.until_output("a", "\n30000\n")
    assert await read(node) == "".join(f"{number}\n" for number in range(1, 30001))
    assert await read(node, 2) == "29999\n30000\n"
    assert await read(node, 20000) == "".join(f"{number}\n" for number in range(10001, 30001))
    assert await read(node, 0) == ""
    assert len((await read(node, 10**6)).splitlines()) == 30000


async def test_following_ends_with_the_container_and_has_both_outputs(node: Node) -> None:
    script = "echo first; while [ ! -e /data/go ]; do sleep 0.02; done; echo last >&2"
    volumes = [{"name": "v", "hostPath": {"path": str(node.data_dir)}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    await node.create(pod_object("a", script, container=mounts, volumes=volumes, restartPolicy="Never"))
    await node.until("a", is_running)
    await node.until_output("a", "first")
    chunks = []
    async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", None, follow=True):
        chunks.append(chunk)
        (node.data_dir / "go").touch()
    assert b"".join(chunks) == b"first\nlast\n"


async def test_a_container_that_never_started_has_no_log(node: Node) -> None:
    with pytest.raises(NoSuchLogError, match="does not run"):
        await read(node)
