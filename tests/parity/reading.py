"""What both say when they are read: lists, pages, tables, the scale subresource, watches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.parity.bodies import CORE, GROUPS, OPERATIONS, STATES, THINGS, group, pod, reason, thing
from tests.parity.peer import AGE, MERGE, STRATEGIC, TABLE

if TYPE_CHECKING:
    from tests.parity.peer import Peer


async def lists_and_collections(peer: Peer) -> None:
    for name in ("a", "b", "c", "d"):
        body = thing(name)
        body["metadata"]["labels"] = {"odd": "yes" if name in "ac" else "no"}
        await peer.call("POST", THINGS, body)
    page = await peer.call("GET", THINGS, limit="3", only=names_and_remaining)
    more = page["metadata"]["continue"]
    await peer.call("GET", THINGS, only=names_and_remaining, limit="3", **{"continue": more})
    peer.said[-1] = ("the second page", *peer.said[-1][1:])
    await peer.call("GET", THINGS, only=reason, **{"continue": "nonsense"})
    await peer.call("GET", THINGS, only=reason, labelSelector="a b")
    await peer.call("GET", THINGS, only=reason, fieldSelector="spec.mode=Small")
    await peer.call("GET", THINGS, only=names_and_remaining, labelSelector="odd in (yes),nothing notin (x)")
    await peer.call("GET", THINGS, only=names_and_remaining, fieldSelector="metadata.name!=a")
    await peer.call(
        "GET",
        "/apis/example.dev/v1/things",
        only=names_and_remaining,
        fieldSelector=f"metadata.namespace={peer.namespace}",
    )
    await peer.call("DELETE", THINGS, only=names_and_remaining, labelSelector="odd=yes")
    await peer.call("GET", THINGS, only=names_and_remaining)
    await peer.call("DELETE", THINGS, only=names_and_remaining)
    await peer.call("GET", THINGS, only=names_and_remaining)


def names_and_remaining(answer: dict[str, Any]) -> Any:
    names = [item["metadata"]["name"] for item in answer["items"]]
    return names, answer["metadata"].get("remainingItemCount"), answer["kind"]


async def scale(peer: Peer) -> None:
    await peer.call("POST", THINGS, thing())
    shown = await peer.call("GET", f"{THINGS}/one/scale")
    stale = copy.deepcopy(shown)
    shown["spec"]["replicas"] = 6
    await peer.call("PUT", f"{THINGS}/one/scale", shown)
    await peer.call("PUT", f"{THINGS}/one/scale", stale)
    await peer.call("PATCH", f"{THINGS}/one/scale", {"spec": {"replicas": 7}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one/scale", {"spec": {"replicas": 99}}, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one")


async def tables(peer: Peer) -> None:
    """What `kubectl get` prints."""
    await peer.call("POST", THINGS, thing())
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await peer.call("PATCH", f"{THINGS}/one/status", status, content_type=MERGE)
    await peer.call("POST", GROUPS, group())
    await peer.call("POST", f"{CORE}/pods", pod())
    running = {
        "status": {
            "phase": "Running",
            "podIP": "10.1.1.1",
            "containerStatuses": [
                {
                    "name": "c",
                    "ready": True,
                    "restartCount": 2,
                    "image": "x",
                    "imageID": "x",
                    "state": {"running": {"startedAt": "2026-11-20T00:00:00Z"}},
                    "lastState": {
                        "terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-20T00:00:00Z"}
                    },
                }
            ],
        }
    }
    await peer.call("PATCH", f"{CORE}/pods/p/status", running, content_type=STRATEGIC)
    await peer.call("POST", f"{CORE}/pods", pod("waiting"))
    waiting = {"name": "c", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    waiting["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashing = {"status": {"containerStatuses": [waiting]}}
    await peer.call("PATCH", f"{CORE}/pods/waiting/status", crashing, content_type=STRATEGIC)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    await peer.call("POST", f"{CORE}/services", {**service, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}})
    await peer.call("POST", f"{CORE}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}})
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await peer.call("POST", f"{CORE}/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": claim_spec})
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": peer.namespace},
        "reason": "Killing",
        "message": "text",
        "type": "Normal",
        "source": {"component": "here"},
        "count": 3,
        "firstTimestamp": "2026-11-20T00:00:00Z",
        "lastTimestamp": "2026-11-20T00:00:00Z",
    }
    await peer.call("POST", f"{CORE}/events", event)
    node = {"metadata": {"name": peer.namespace, "labels": {"node-role.kubernetes.io/worker": ""}}}
    await peer.call("POST", "/api/v1/nodes", node)
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await peer.call("PATCH", "/api/v1/nodes/{ns}/status", conditions, content_type=STRATEGIC)
    others: list[tuple[str, str, dict[str, Any]]] = [
        ("api/v1", "secrets", {"stringData": {"a": "b"}}),
        ("api/v1", "serviceaccounts", {}),
        ("api/v1", "endpoints", {"subsets": [{"addresses": [{"ip": "10.1.1.1"}], "ports": [{"port": 80}]}]}),
        ("apis/coordination.k8s.io/v1", "leases", {"spec": {"holderIdentity": "me"}}),
        ("apis/policy/v1", "poddisruptionbudgets", {"spec": {"maxUnavailable": 1}}),
        ("apis/networking.k8s.io/v1", "networkpolicies", {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}),
        ("apis/rbac.authorization.k8s.io/v1", "roles", {}),
        (
            "apis/rbac.authorization.k8s.io/v1",
            "rolebindings",
            {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}},
        ),
    ]
    for prefix, plural, content in others:
        await peer.call("POST", f"/{prefix}/namespaces/{{ns}}/{plural}", {"metadata": {"name": "x"}, **content})
    peer.said.clear()
    core = ("pods", "services", "configmaps", "persistentvolumeclaims", "events")
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.dev"
    paths = [THINGS, GROUPS, *(f"{CORE}/{plural}" for plural in core), "/api/v1/nodes/{ns}", "/api/v1/namespaces/{ns}"]
    paths += [f"/{prefix}/namespaces/{{ns}}/{plural}" for prefix, plural, _ in others]
    paths += ["/apis/events.k8s.io/v1/namespaces/{ns}/events", definition]
    for path in paths:
        await peer.call("GET", path, accept=TABLE, only=shown_table)


def shown_table(table: dict[str, Any]) -> Any:
    """Names, types and priorities of the columns, and the cells without ages."""
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    rows = [[AGE.sub("AGE", cell) if isinstance(cell, str) else cell for cell in row["cells"]] for row in table["rows"]]
    return columns, sorted(rows, key=str)


async def watches(peer: Peer) -> None:
    """What a watch tells, from a list on and from the beginning."""
    listed = await peer.call("GET", THINGS)
    since = listed["metadata"]["resourceVersion"]
    await peer.call("POST", THINGS, thing())
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"labels": {"in": "yes"}}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 4}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"labels": {"in": "no"}}}, content_type=MERGE)
    await peer.call("DELETE", f"{THINGS}/one")
    await peer.call("POST", THINGS, thing("two"))
    held = {"metadata": {"finalizers": ["example.dev/a"]}}
    await peer.call("PATCH", f"{THINGS}/two", held, content_type=MERGE)
    await peer.call("DELETE", f"{THINGS}/two")
    await peer.call("PATCH", f"{THINGS}/two", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await peer.call("POST", THINGS, thing("two"))
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
    paths = [GROUPS, STATES, OPERATIONS, policy, *core]
    since = {path: (await peer.call("GET", path, only=reason))["metadata"]["resourceVersion"] for path in paths}
    await peer.call("POST", GROUPS, group(), only=reason)
    await peer.call("POST", f"{CORE}/pods", pod(), only=reason)
    for path in paths:
        await peer.watch(path, resourceVersion=since[path], allowWatchBookmarks="true")
    # Nodes are everybody's: none has this label.
    mine = {"labelSelector": "brokergroup.dev/compared=yes"}
    listed = await peer.call("GET", "/api/v1/nodes", only=names_and_remaining, **mine)
    await peer.watch("/api/v1/nodes", resourceVersion=listed["metadata"]["resourceVersion"], **mine)
