"""What both say when they are read: lists, tables of custom kinds, the scale subresource, watches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.parity.bodies import CLUSTERS, CORE, GROUPS, OPERATIONS, STATES, THINGS, cluster, group, pod, reason, thing
from tests.parity.peer import AGE, TABLE

if TYPE_CHECKING:
    from tests.parity.peer import Peer


async def lists_and_collections(peer: Peer) -> None:
    for name in ("a", "b", "c", "d"):
        body = thing(name)
        body["metadata"]["labels"] = {"odd": "yes" if name in "ac" else "no"}
        await peer.post(THINGS, body)
    await peer.get(THINGS, only=reason, labelSelector="a b")
    await peer.get(THINGS, only=reason, fieldSelector="spec.mode=Small")
    await peer.get(THINGS, only=names_and_kind, labelSelector="odd in (yes),nothing notin (x)")
    await peer.get(THINGS, only=names_and_kind, fieldSelector="metadata.name!=a")
    await peer.get(
        "/apis/example.dev/v1/things", only=names_and_kind, fieldSelector=f"metadata.namespace={peer.namespace}"
    )
    await peer.delete(THINGS, only=names_and_kind, labelSelector="odd=yes")
    await peer.get(THINGS, only=names_and_kind)
    await peer.delete(THINGS, only=names_and_kind)
    await peer.get(THINGS, only=names_and_kind)


def names_and_kind(answer: dict[str, Any]) -> Any:
    return [item["metadata"]["name"] for item in answer["items"]], answer["kind"]


async def scale(peer: Peer) -> None:
    await peer.post(THINGS, thing())
    shown = await peer.get(f"{THINGS}/one/scale")
    stale = copy.deepcopy(shown)
    shown["spec"]["replicas"] = 6
    await peer.put(f"{THINGS}/one/scale", shown)
    await peer.put(f"{THINGS}/one/scale", stale)
    await peer.merge(f"{THINGS}/one/scale", {"spec": {"replicas": 7}})
    await peer.merge(f"{THINGS}/one/scale", {"spec": {"replicas": 99}})
    await peer.get(f"{THINGS}/one")


async def tables(peer: Peer) -> None:
    """What `kubectl get` prints."""
    await peer.post(THINGS, thing())
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await peer.merge(f"{THINGS}/one/status", status)
    await peer.post(GROUPS, group())
    peer.said.clear()
    for path in (THINGS, GROUPS):
        await peer.get(path, accept=TABLE, only=shown_table)


def shown_table(table: dict[str, Any]) -> Any:
    """Names, types and priorities of the columns, and the cells without ages."""
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    rows = [[AGE.sub("AGE", cell) if isinstance(cell, str) else cell for cell in row["cells"]] for row in table["rows"]]
    return columns, sorted(rows, key=str)


async def watches(peer: Peer) -> None:
    """What a watch tells, from a list on and from the beginning."""
    listed = await peer.get(THINGS)
    since = listed["metadata"]["resourceVersion"]
    await peer.post(THINGS, thing())
    await peer.merge(f"{THINGS}/one", {"metadata": {"labels": {"in": "yes"}}})
    await peer.merge(f"{THINGS}/one", {"spec": {"replicas": 4}})
    await peer.merge(f"{THINGS}/one", {"metadata": {"labels": {"in": "no"}}})
    await peer.delete(f"{THINGS}/one")
    await peer.post(THINGS, thing("two"))
    held = {"metadata": {"finalizers": ["example.dev/a"]}}
    await peer.merge(f"{THINGS}/two", held)
    await peer.delete(f"{THINGS}/two")
    await peer.merge(f"{THINGS}/two", {"metadata": {"finalizers": None}})
    await peer.post(THINGS, thing("two"))
    for query in (
        {"resourceVersion": since},
        {"resourceVersion": since, "labelSelector": "in=yes"},
        {"resourceVersion": since, "fieldSelector": "metadata.name=two"},
        {},
        {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan"},
    ):
        await peer.watch(THINGS, **query)


async def watches_of_the_operator(peer: Peer) -> None:
    """Each kind that the operator and kubectl watch, from a list on."""
    policy = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    core = [f"{CORE}/{plural}" for plural in ("pods", "services", "configmaps", "persistentvolumeclaims")]
    paths = [GROUPS, STATES, OPERATIONS, CLUSTERS, policy, *core]
    since = {path: (await peer.get(path, only=reason))["metadata"]["resourceVersion"] for path in paths}
    await peer.post(GROUPS, group(), only=reason)
    await peer.post(CLUSTERS, cluster(), only=reason)
    await peer.post(f"{CORE}/pods", pod(), only=reason)
    for path in paths:
        await peer.watch(path, resourceVersion=since[path], allowWatchBookmarks="true")
    # Nodes are everybody's: none has this label.
    mine = {"labelSelector": "brokergroup.dev/compared=yes"}
    listed = await peer.get("/api/v1/nodes", only=names_and_kind, **mine)
    await peer.watch("/api/v1/nodes", resourceVersion=listed["metadata"]["resourceVersion"], **mine)
