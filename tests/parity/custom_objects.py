"""What both say of custom objects: life, status, complaints, rules, patches, finalizers, server-side apply."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.parity.bodies import THINGS, reason, thing
from tests.parity.peer import APPLY, JSON_PATCH, MERGE, STRATEGIC

if TYPE_CHECKING:
    from tests.parity.peer import Peer


async def life_of_a_custom_object(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, thing())
    stale = copy.deepcopy(made)
    made["spec"]["replicas"] = 4
    await peer.call("PUT", f"{THINGS}/one", made)
    await peer.call("PUT", f"{THINGS}/one", stale)
    await peer.call("PUT", f"{THINGS}/one", thing())
    await peer.call("POST", THINGS, thing())
    await peer.call("GET", f"{THINGS}/one")
    await peer.call("GET", f"{THINGS}/two")
    await peer.call("GET", THINGS, labelSelector="a=b")
    await peer.call("GET", f"{THINGS}/one/nothing")
    await peer.call("DELETE", f"{THINGS}/one", {"preconditions": {"uid": "other"}})
    await peer.call("DELETE", f"{THINGS}/one")
    await peer.call("DELETE", f"{THINGS}/one")


async def status_is_apart(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, {**thing(), "status": {"replicas": 9}})
    made["status"] = {"replicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    made["spec"]["replicas"] = 8
    after = await peer.call("PUT", f"{THINGS}/one/status", made)
    after["status"]["replicas"] = 5
    after["spec"]["replicas"] = 8
    await peer.call("PUT", f"{THINGS}/one", after)
    patch = {"status": {"replicas": 7}}
    await peer.call("PATCH", f"{THINGS}/one/status", patch, content_type=MERGE)
    wrong = {"status": {"conditions": [{"type": "Ready"}]}}
    await peer.call("PATCH", f"{THINGS}/one/status", wrong, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one/scale")
    labels = {"metadata": {"labels": {"a": "b"}}}  # not taken over, though the real one notes them as owned
    await peer.call(
        "PATCH", f"{THINGS}/one/status", labels, content_type=MERGE, only=lambda a: a["metadata"].get("labels")
    )


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
        await peer.call("POST", THINGS, thing(**spec))
    await peer.call("POST", THINGS, thing(odd=1), fieldValidation="Strict")
    await peer.call("POST", THINGS, {**thing(), "spec": {}})
    await peer.call("POST", THINGS, {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "x"}})
    await peer.call("POST", THINGS, thing("Not_A_Name"))
    await peer.call("POST", THINGS, {**thing(), "apiVersion": "example.dev/v2"}, only=reason)
    await peer.call("POST", THINGS.replace("{ns}", "no-such-namespace"), thing())
    labelled = thing("labelled")
    labelled["metadata"]["labels"] = {"a": "not a label!"}
    await peer.call("POST", THINGS, labelled)


async def transition_rules(peer: Peer) -> None:
    await peer.call("POST", THINGS, thing(epoch=5, parts=[{"id": 1, "code": ""}, {"id": 2, "code": "b"}]))
    for spec in (
        {"epoch": 6},
        {"epoch": 4},
        {"mode": "Big"},
        {"parts": [{"id": 2, "code": "b"}, {"id": 1, "code": "a"}]},
        {"parts": [{"id": 1, "code": "a"}, {"id": 2, "code": "changed"}]},
    ):
        await peer.call("PATCH", f"{THINGS}/one", {"spec": spec}, content_type=MERGE)


async def patches(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, thing(config={"a": "1", "b": "2"}))
    version = made["metadata"]["resourceVersion"]
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    await peer.call(
        "PATCH",
        f"{THINGS}/one",
        [*test, {"op": "add", "path": "/spec/config/c", "value": "3"}],
        content_type=JSON_PATCH,
    )

    # The wording of a patch library is its own.
    for body, content_type in (
        ([*test, {"op": "add", "path": "/spec/config/d", "value": "4"}], JSON_PATCH),
        ([{"op": "remove", "path": "/spec/nothing"}], JSON_PATCH),
        ({"spec": {"config": {"a": None}}}, STRATEGIC),
    ):
        await peer.call("PATCH", f"{THINGS}/one", body, content_type=content_type, only=reason)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"config": {"a": None}}}, content_type=MERGE)
    stale = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}}
    await peer.call("PATCH", f"{THINGS}/one", stale, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 4}}, content_type=MERGE, dryRun="All")
    await peer.call("GET", f"{THINGS}/one")


async def finalizers(peer: Peer) -> None:
    body = thing()
    body["metadata"]["finalizers"] = ["example.dev/a"]
    await peer.call("POST", THINGS, body)
    await peer.call("DELETE", f"{THINGS}/one")
    more = {"metadata": {"finalizers": ["example.dev/a", "example.dev/b"]}}
    await peer.call("PATCH", f"{THINGS}/one", more, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one")


async def server_side_apply(peer: Peer) -> None:
    async def apply(manager: str, body: dict[str, Any], path: str = f"{THINGS}/one", **query: Any) -> None:
        await peer.call("PATCH", path, body, content_type=APPLY, fieldManager=manager, **query)

    for validation in ("Ignore", "Strict"):  # an undeclared field has no place among the fields that somebody owns
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
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 5}}, content_type=MERGE, fieldManager="dave")
    await apply("bob", thing(replicas=4))
