"""Both servers' answers about custom objects: life, status, complaints, rules, patches, apply, lists, tables, scale, watches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.parity.peer import (
    AGE,
    CLUSTERS,
    CORE,
    GROUPS,
    JSON_PATCH,
    OPERATIONS,
    STATES,
    STRATEGIC,
    TABLE,
    THINGS,
    cluster,
    group,
    pod,
    reason,
    thing,
)

if TYPE_CHECKING:
    from tests.parity.peer import Peer


async def life_of_a_custom_object(peer: Peer) -> None:
    made = await peer.post(THINGS, thing())
    stale = copy.deepcopy(made)
    made["spec"]["replicas"] = 4
    await peer.put(f"{THINGS}/one", made)
    await peer.put(f"{THINGS}/one", stale)
    await peer.put(f"{THINGS}/one", thing())
    await peer.post(THINGS, thing())
    await peer.get(f"{THINGS}/one")
    await peer.get(f"{THINGS}/two")
    await peer.get(THINGS, labelSelector="a=b")
    await peer.get(f"{THINGS}/one/nothing")
    await peer.delete(f"{THINGS}/one", {"preconditions": {"uid": "other"}})
    await peer.delete(f"{THINGS}/one")
    await peer.delete(f"{THINGS}/one")


async def status_is_apart(peer: Peer) -> None:
    made = await peer.post(THINGS, {**thing(), "status": {"replicas": 9}})
    made["status"] = {"replicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    made["spec"]["replicas"] = 8
    after = await peer.put(f"{THINGS}/one/status", made)
    after["status"]["replicas"] = 5
    after["spec"]["replicas"] = 8
    await peer.put(f"{THINGS}/one", after)
    patch = {"status": {"replicas": 7}}
    await peer.merge(f"{THINGS}/one/status", patch)
    wrong = {"status": {"conditions": [{"type": "Ready"}]}}
    await peer.merge(f"{THINGS}/one/status", wrong)
    await peer.get(f"{THINGS}/one/scale")
    labels = {"metadata": {"labels": {"a": "b"}}}  # not taken over, though the real one notes them as owned
    await peer.merge(f"{THINGS}/one/status", labels, only=lambda a: a["metadata"].get("labels"))


async def complaints_about_custom_objects(peer: Peer) -> None:
    for spec in (
        {"replicas": 0},
        {"replicas": 10},
        {"replicas": "three"},
        {"mode": "Odd"},
        {"names": ["ok", "NO"]},
        {"names": ["toolong"]},
        {"names": ["a", "b", "c", "d"]},
        {"size": 1.5},
        {"config": {"a": 1}},
        {"parts": [{"id": 1}, {"id": 1}]},
        {"parts": [{"code": "x"}]},
        {"mode": "Big", "replicas": 2},
        {"odd": 1},
        {"replicas": None},
    ):
        await peer.post(THINGS, thing(**spec))
    await peer.post(THINGS, thing(odd=1), fieldValidation="Strict")
    await peer.post(THINGS, {**thing(), "spec": {}})
    await peer.post(THINGS, {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "x"}})
    await peer.post(THINGS, thing("Not_A_Name"))
    await peer.post(THINGS, {**thing(), "apiVersion": "example.dev/v2"}, only=reason)
    await peer.post(THINGS.replace("{ns}", "no-such-namespace"), thing())
    labelled = thing("labelled")
    labelled["metadata"]["labels"] = {"a": "not a label!"}
    await peer.post(THINGS, labelled)


async def transition_rules(peer: Peer) -> None:
    await peer.post(THINGS, thing(epoch=5, parts=[{"id": 1, "code": ""}, {"id": 2, "code": "b"}]))
    for spec in (
        {"epoch": 6},
        {"epoch": 4},
        {"mode": "Big"},
        {"parts": [{"id": 2, "code": "b"}, {"id": 1, "code": "a"}]},
        {"parts": [{"id": 1, "code": "a"}, {"id": 2, "code": "changed"}]},
    ):
        await peer.merge(f"{THINGS}/one", {"spec": spec})


async def patches(peer: Peer) -> None:
    made = await peer.post(THINGS, thing(config={"a": "1", "b": "2"}))
    version = made["metadata"]["resourceVersion"]
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    await peer.json_patch(f"{THINGS}/one", [*test, {"op": "add", "path": "/spec/config/c", "value": "3"}])

    # The wording of a patch library is its own.
    for body, content_type in (
        ([*test, {"op": "add", "path": "/spec/config/d", "value": "4"}], JSON_PATCH),
        ([{"op": "remove", "path": "/spec/nothing"}], JSON_PATCH),
        ({"spec": {"config": {"a": None}}}, STRATEGIC),
    ):
        await peer.call("PATCH", f"{THINGS}/one", body, content_type=content_type, only=reason)
    await peer.merge(f"{THINGS}/one", {"spec": {"config": {"a": None}}})
    stale = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}}
    await peer.merge(f"{THINGS}/one", stale)
    await peer.merge(f"{THINGS}/one", {"spec": {"replicas": 4}}, dryRun="All")
    await peer.get(f"{THINGS}/one")


async def finalizers(peer: Peer) -> None:
    body = thing()
    body["metadata"]["finalizers"] = ["example.dev/a"]
    await peer.post(THINGS, body)
    await peer.delete(f"{THINGS}/one")
    more = {"metadata": {"finalizers": ["example.dev/a", "example.dev/b"]}}
    await peer.merge(f"{THINGS}/one", more)
    await peer.merge(f"{THINGS}/one", {"metadata": {"finalizers": None}})
    await peer.get(f"{THINGS}/one")


async def server_side_apply(peer: Peer) -> None:
    async def apply(manager: str, body: dict[str, Any], path: str = f"{THINGS}/one", **query: Any) -> None:
        await peer.apply(path, body, fieldManager=manager, **query)

    for validation in ("Ignore", "Strict"):  # an undeclared field has no place among the owned fields
        await apply("alice", thing(odd=1), fieldValidation=validation)
        await apply("alice", thing(parts=[{"id": 1, "code": "x", "odd": 1}]), fieldValidation=validation)
    await apply("alice", thing(replicas=3, config={"a": "1"}, parts=[{"id": 1, "code": "x"}]))
    without_mode = thing(config={"b": "2"}, parts=[{"id": 2, "code": "y"}])
    del without_mode["spec"]["mode"]
    await apply("bob", without_mode)
    await apply("bob", thing(replicas=4))
    await apply("bob", thing(replicas=4, config={"a": "9"}))
    await apply("bob", thing(replicas=4), force="true")
    await apply("alice", thing(parts=[{"id": 1, "code": "x"}]))
    await apply("alice", thing(parts=[{"id": 1, "code": "x"}]))
    status: dict[str, Any] = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "one"}}
    status["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    await apply("carol", status, f"{THINGS}/one/status")
    await peer.merge(f"{THINGS}/one", {"spec": {"replicas": 5}}, fieldManager="dave")
    await apply("bob", thing(replicas=4))


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
    """Tables for `kubectl get`."""
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
    """Events of watches, after a list and from the beginning."""
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
    network = "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies"
    paths = [GROUPS, STATES, OPERATIONS, CLUSTERS, policy, network, *core]
    since = {path: (await peer.get(path, only=reason))["metadata"]["resourceVersion"] for path in paths}
    await peer.post(GROUPS, group(), only=reason)
    await peer.post(CLUSTERS, cluster(), only=reason)
    await peer.post(f"{CORE}/pods", pod(), only=reason)
    for path in paths:
        await peer.watch(path, resourceVersion=since[path], allowWatchBookmarks="true")
    # All tests share the nodes: none has this label.
    mine = {"labelSelector": "brokergroup.dev/compared=yes"}
    listed = await peer.get("/api/v1/nodes", only=names_and_kind, **mine)
    await peer.watch("/api/v1/nodes", resourceVersion=listed["metadata"]["resourceVersion"], **mine)
