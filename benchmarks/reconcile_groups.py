"""The embedded API with settled groups in it, as a process of its own: its processor time is none of the operator's.

    python reconcile_groups.py 1000

One group is brought up by real passes; the others are its copies under other names, with the revisions that the operator would have
written. Prints a line of JSON with its URL; then each line on stdin is a command, answered with a line of JSON: `touch` changes the
status of one pod of each group, `counts` says what was requested since the last `counts`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "operator")]

import structlog  # noqa: E402

from brokergroup_operator.kube import resources  # noqa: E402
from brokergroup_operator.kube.resources import PODS, Resource  # noqa: E402
from brokergroup_operator.reconcile.access import ClusterAccess  # noqa: E402
from brokergroup_operator.reconcile.decide.rollout import wanted_pod  # noqa: E402
from brokergroup_operator.reconcile.evaluate import evaluate  # noqa: E402
from brokergroup_operator.reconcile.plan import ApplyObject  # noqa: E402
from brokergroup_operator.reconcile.see.fetch import read_group  # noqa: E402
from brokergroup_operator.reconcile.see.members import membership  # noqa: E402
from brokergroup_operator.reconcile.see.observed import Observed  # noqa: E402
from brokergroup_operator.records.serialize import record_from_json  # noqa: E402
from brokergroup_operator.records.store import GroupKey  # noqa: E402
from kube_sandbox.api_server.requests import Write  # noqa: E402
from tests.our_kinds import server_with_our_kinds  # noqa: E402
from tests.reconcile.world import SETTINGS, World, applier_for  # noqa: E402

if TYPE_CHECKING:
    from aiohttp import web

    from kube_sandbox.api_server.server import SandboxApiServer

NAMESPACE: Final = "default"
ORIGIN: Final = "bench-origin"
NOW: Final = "2026-01-01T00:00:00Z"
UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
# (kind, name) of an object.
Name = tuple[str, str]


def name_of(number: int) -> str:
    """The name of a group."""
    return f"bench-{number:05}"


async def bring_up(server: SandboxApiServer) -> None:
    """Bring up the origin, by passes, a kubelet that only writes status, and brokers that are in sync at once."""
    access = ClusterAccess(url=server.url)
    applier = applier_for(access)
    async with access.own_client() as api:
        await World(api, applier, GroupKey(NAMESPACE, ORIGIN)).bring_up(server)
    await applier.close()


class Copies:
    """Puts copies of the origin into the store."""

    def __init__(self, server: SandboxApiServer) -> None:
        self._storage = server.store.storage
        self._origin = {
            (key, str(version.obj["kind"]), str(version.obj["metadata"]["name"])): version.encoded.decode()
            for key, name, version in self._storage.everything()
            if ORIGIN in name[1] and version.obj["kind"] != "Event"
        }

    def put(self, number: int) -> None:
        """One settled group more."""
        uids: dict[str, str] = {}

        def renamed(text: str) -> Any:
            text = UID.sub(lambda found: uids.setdefault(found[0], str(uuid.uuid4())), text)
            return json.loads(text.replace(ORIGIN, name_of(number)))

        objects = {place: renamed(text) for place, text in self._origin.items()}
        put_revisions({(kind, obj["metadata"]["name"]): obj for (_, kind, _), obj in objects.items()})
        for (key, _, _), obj in objects.items():
            self._storage.put(key, (NAMESPACE, obj["metadata"]["name"]), obj)


def put_revisions(objects: dict[Name, dict[str, Any]]) -> None:
    """Give the objects the annotations that the operator would have applied to them: hashes that the name goes into."""
    group, state = one_of(objects, resources.BROKER_GROUPS), one_of(objects, resources.BROKER_GROUP_STATES)
    seen = Observed(
        group=read_group(group),
        group_object=group,
        record=record_from_json(state["record"], source="benchmark"),
        state_object=state,
        pods=all_of(objects, resources.PODS),
        claims=all_of(objects, resources.PERSISTENT_VOLUME_CLAIMS),
        services=all_of(objects, resources.SERVICES),
        config_maps=all_of(objects, resources.CONFIG_MAPS),
        disruption_budgets=all_of(objects, resources.POD_DISRUPTION_BUDGETS),
        now=NOW,
    )
    for action in evaluate(seen, SETTINGS, now=NOW).actions:
        if isinstance(action, ApplyObject):
            take_annotations(objects, action.resource, action.object)
    for member in membership(seen).members:
        take_annotations(objects, PODS, wanted_pod(seen, member, SETTINGS))


def one_of(objects: dict[Name, dict[str, Any]], resource: Resource) -> dict[str, Any]:
    """The only object of that kind."""
    (found,) = all_of(objects, resource).values()
    return found


def all_of(objects: dict[Name, dict[str, Any]], resource: Resource) -> dict[str, dict[str, Any]]:
    """The objects of that kind, by name."""
    return {name: obj for (kind, name), obj in objects.items() if kind == resource.kind}


def take_annotations(objects: dict[Name, dict[str, Any]], resource: Resource, wanted: dict[str, Any]) -> None:
    """The annotations of the wanted object, on the one of its name."""
    metadata = objects[resource.kind, wanted["metadata"]["name"]]["metadata"]
    metadata["annotations"] = metadata.get("annotations", {}) | wanted["metadata"].get("annotations", {})


class Counts:
    """What was requested: reads, writes, and watches that began."""

    def __init__(self, server: SandboxApiServer) -> None:
        self._counted: Counter[str] = Counter()
        server.before_request = self._count

    def _count(self, request: web.BaseRequest) -> None:
        kind = "watches" if "watch" in request.query else "reads" if request.method == "GET" else "writes"
        self._counted[kind] += 1

    def taken(self) -> dict[str, int]:
        """Since the last time."""
        counted, self._counted = self._counted, Counter()
        return {kind: counted[kind] for kind in ("reads", "writes", "watches")}


def touch(server: SandboxApiServer, count: int, turn: int) -> None:
    """Change the status of one pod of each group, in a field that decides nothing."""
    store = server.store
    pods = store.resource(PODS.group, PODS.version, PODS.plural)
    for number in range(count):
        change = {"status": {"message": f"touched {turn}"}}
        store.patch(pods, NAMESPACE, f"{name_of(number)}-2", change, Write(), subresource="status")


async def commands() -> asyncio.StreamReader:
    """The lines of stdin."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(count: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    async with server_with_our_kinds() as server:
        await bring_up(server)
        copies = Copies(server)
        for number in range(count):
            copies.put(number)
        counts = Counts(server)
        print(json.dumps({"url": server.url}), flush=True)
        turn = 0
        async for line in await commands():
            match line.decode().strip():
                case "touch":
                    turn += 1
                    touch(server, count, turn)
                    print(json.dumps({"touched": count}), flush=True)
                case "counts":
                    print(json.dumps(counts.taken()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
