"""`make test-sandbox-parity`: the sandbox held honest by a real kube-apiserver.

    python tests/parity/run.py

The same conversations with both, answers compared. What is asked must be enough: every kind of request that the operator makes
in the workloads of tests/sieve, and those of kubectl and the plugin, must occur in a conversation. The last line is
`{"requests", "unlisted_differences", "request_kinds", "not_covered"}`; exit code 0 only if both answer the same and nothing is
missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
import tempfile
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import aiohttp  # noqa: E402
import structlog  # noqa: E402
import yaml  # noqa: E402

from kube_sandbox.api_server.server import SandboxApiServer  # noqa: E402
from tests.parity import core_kinds, custom_objects, our_kinds  # noqa: E402
from tests.parity.peer import Peer, shape_of  # noqa: E402
from tests.sieve.workloads import WORKLOADS  # noqa: E402
from tests.sieve.world import told  # noqa: E402
from tests.support.kube_apiserver import running_kube_apiserver  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.kube_apiserver import KubeApiserver

    Conversation = Callable[[Peer], Awaitable[None]]

CONVERSATIONS: list[Conversation] = [
    custom_objects.life_of_a_custom_object,
    custom_objects.status_is_apart,
    custom_objects.complaints_about_custom_objects,
    custom_objects.transition_rules,
    custom_objects.patches,
    custom_objects.finalizers,
    custom_objects.server_side_apply,
    core_kinds.life_of_a_pod,
    core_kinds.names_in_a_pod,
    core_kinds.other_core_kinds,
    core_kinds.node_ports,
    core_kinds.leases_budgets_and_events,
    core_kinds.applying_built_in_kinds,
    core_kinds.what_the_operator_sends,
    core_kinds.what_a_backup_sends_without_a_snapshot_controller,
    our_kinds.broker_groups,
    our_kinds.broker_group_states,
    our_kinds.broker_group_operations,
    our_kinds.rocketmq_clusters,
    custom_objects.lists_and_collections,
    custom_objects.scale,
    custom_objects.tables,
    custom_objects.watches,
    custom_objects.watches_of_the_operator,
]
# Requests of kubectl and the plugin, in addition to the operator's.
OF_KUBECTL = frozenset(
    {
        "POST brokergroups", "POST brokergroupoperations", "PATCH brokergroups merge-patch+json",
        "PATCH brokergroups apply-patch+yaml", "GET brokergroups all", "GET brokergroups one", "GET brokergroups/scale one",
        "PATCH brokergroups/scale merge-patch+json", "GET brokergroupoperations all", "GET brokergroupoperations one",
        "DELETE brokergroups one", "DELETE brokergroupoperations one", "DELETE pods one", "GET pods all", "GET events all",
        "WATCH brokergroups", "WATCH brokergroupoperations", "WATCH pods",
    }
)  # fmt: skip


def asked_by_the_operator() -> set[str]:
    """The kinds of request of every workload."""
    shapes = set()
    for story in WORKLOADS.values():
        shapes |= {shape_of(*asked) for asked in told(story).asked}
    return shapes


async def serve_kinds(peer: Peer) -> None:
    """Apply the definitions, and wait until their kinds are served."""
    for file in (ROOT / "tests" / "sandbox" / "crds" / "things.yaml", *sorted((ROOT / "crds").glob("*.yaml"))):
        definition = yaml.safe_load(file.read_text())
        name = definition["metadata"]["name"]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        answer = await peer.apply(path, definition, fieldManager="test", force="true")
        assert answer.get("kind") == "CustomResourceDefinition", answer
        spec = definition["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        while (await peer.get(served)).get("kind") == "Status":  # the real one registers it a moment later
            pass


async def open_namespace(peer: Peer) -> None:
    """Make the namespace of a conversation, and forget what was said before."""
    await peer.post("/api/v1/namespaces", {"metadata": {"name": peer.namespace}})
    peer.said.clear()


@asynccontextmanager
async def both(real_server: KubeApiserver) -> AsyncIterator[tuple[Peer, Peer]]:
    """The sandbox and the real one, with the same kinds and a namespace of the same name."""
    namespace = f"compare-{uuid.uuid4().hex[:8]}"
    sandbox = SandboxApiServer()
    await sandbox.start()
    context = ssl.create_default_context(cafile=str(real_server.ca_file))
    headers = {"Authorization": f"Bearer {real_server.token}"}
    try:
        async with (
            aiohttp.ClientSession() as plain,
            aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as secured,
        ):
            ours, real = Peer(sandbox.url, namespace, plain), Peer(real_server.url, namespace, secured)
            for peer in (ours, real):
                await serve_kinds(peer)
                await open_namespace(peer)
            yield ours, real
    finally:
        await sandbox.stop()


async def compare(real_server: KubeApiserver, conversation: Conversation) -> tuple[int, list[str], set[str]]:
    """One conversation: requests, differences, kinds of request."""
    async with both(real_server) as (ours, real):
        await conversation(ours)
        await conversation(real)
    differences = [
        f"{conversation.__name__}: {request}\n    sandbox: {json.dumps([status, said])[:1500]}"
        f"\n    real:    {json.dumps(there[1:])[:1500]}"
        for (request, status, said), there in zip(ours.said, real.said, strict=True)
        if (request, status, said) != there
    ]
    return len(ours.said), differences, ours.shapes


async def compare_all(server: KubeApiserver) -> tuple[int, list[str], set[str]]:
    requests = 0
    differences: list[str] = []
    shapes: set[str] = set()
    for conversation in CONVERSATIONS:
        count, different, kinds = await compare(server, conversation)
        requests, shapes = requests + count, shapes | kinds
        differences += different
        print(f"{conversation.__name__}: {count} requests, {len(different)} differences", flush=True)
    return requests, differences, shapes


def main() -> int:
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    wanted = asked_by_the_operator() | OF_KUBECTL
    with tempfile.TemporaryDirectory() as folder, running_kube_apiserver(Path(folder)) as server:
        requests, differences, shapes = asyncio.run(compare_all(server))
    missing = sorted(wanted - shapes)
    print("\n".join(differences + [f"asked, and in no conversation: {shape}" for shape in missing]))
    print(
        json.dumps(
            {
                "requests": requests,
                "unlisted_differences": len(differences),
                "request_kinds": len(wanted),
                "not_covered": missing,
            }
        )
    )
    return 1 if differences or missing or not requests else 0


if __name__ == "__main__":
    sys.exit(main())
