"""Helpers of stories about a group's life: change its spec, request an operation, read its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from tests.e2e.house import DEADLINE_SECONDS, NAMESPACE, WholeGroup
from tests.reconcile.world import until
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.resources import Resource
    from rocketmq_remoting.command import RemotingCommand


async def change(group: WholeGroup, patch: dict[str, Any]) -> None:
    changed = await group.house.api.patch(
        BROKER_GROUPS, group.name, patch, namespace=NAMESPACE, content_type=PatchType.MERGE
    )
    group.generation = int(changed["metadata"]["generation"])


def condition(group: WholeGroup, kind: str) -> tuple[str, str]:
    """Return a condition's status and reason."""
    found = [item for item in group.seen.status.get("conditions", []) if item["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def objects_of(group: WholeGroup, resource: Resource) -> dict[str, dict[str, Any]]:
    """Return the pods or claims of the group's members, by name."""
    items = (await group.house.api.list(resource, namespace=NAMESPACE)).items
    named = {item["metadata"]["name"]: item for item in items}
    return {name: item for name, item in named.items() if name.startswith(f"{group.name}-")}


async def pod_uids(group: WholeGroup) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in (await objects_of(group, PODS)).items()}


async def claims_of(group: WholeGroup) -> dict[str, dict[str, Any]]:
    return await objects_of(group, PERSISTENT_VOLUME_CLAIMS)


async def events(group: WholeGroup) -> list[str]:
    return [item["reason"] for item in (await group.house.api.list(EVENTS, namespace=NAMESPACE)).items]


async def holds(group: WholeGroup, what: str, check: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for a condition that needs a request to the API."""
    return await until(what, check, deadline_seconds=DEADLINE_SECONDS * group.house.patience)


def up_to_date(group: WholeGroup) -> Callable[[], bool]:
    """Whether every pod runs the spec, by a status of the spec's last change."""

    def check() -> bool:
        status = group.seen.status
        return (
            status.get("observedGeneration", 0) >= group.generation
            and condition(group, "UpToDate")[0] == "True"
            and status.get("updatedReplicas") == group.replicas
            and group.is_settled()
        )

    return check


def a_slave(group: WholeGroup) -> int:
    """Return the slave with the lowest id."""
    return next(broker_id for broker_id in group.seen.sync_state_set if broker_id != group.seen.master_id)


async def ask_for(group: WholeGroup, kind: str, /, **section: Any) -> str:
    """Create a BrokerGroupOperation; return its name."""
    names = {item["metadata"]["name"] for item in await _operations(group)}
    name = next(name for number in range(100) if (name := f"{kind.lower()}-{number}") not in names)
    spec = {"brokerGroupRef": {"name": group.name}, "type": kind, kind.lower(): section}
    await group.house.create(BROKER_GROUP_OPERATIONS, name, spec)
    return name


async def end_of(group: WholeGroup, name: str) -> dict[str, Any]:
    """Wait for the end of an operation; return its status."""

    async def over() -> dict[str, Any] | None:
        found = await group.house.api.get(BROKER_GROUP_OPERATIONS, name, namespace=NAMESPACE)
        status: dict[str, Any] = found.get("status") or {}
        return status if status.get("phase") in {"Succeeded", "Failed", "Rejected"} else None

    status: dict[str, Any] = await holds(group, f"{name} is over\n{group.story()}", over)
    return status


async def done(group: WholeGroup, kind: str, /, **section: Any) -> dict[str, Any]:
    """Request an operation and wait for its success; return its outcome text."""
    if kind != "Elect":  # as a user would: an operation on an unsafe group is refused
        await group.until(lambda: condition(group, "FailoverSafe")[0] == "True", f"the group is safe for a {kind}")
    status = await end_of(group, await ask_for(group, kind, **section))
    assert status["phase"] == "Succeeded", f"{status}\n{group.story()}"
    result: dict[str, Any] = status.get("result", {})
    return result


async def _operations(group: WholeGroup) -> list[dict[str, Any]]:
    return list((await group.house.api.list(BROKER_GROUP_OPERATIONS, namespace=NAMESPACE)).items)


def address_of(group: WholeGroup, broker_id: int) -> str:
    return next(str(one["address"]) for one in group.seen.record["replicas"] if one["brokerId"] == broker_id)


async def has_copied(
    group: WholeGroup, name: str, broker_id: int, code: RequestCode = RequestCode.GET_ALL_TOPIC_CONFIG
) -> bool:
    """Whether this member has the topic of this name, or another object by request code."""
    return f'"{name}"'.encode() in ((await ask(address_of(group, broker_id), request(code))).body or b"")


async def ask(address: str | None, command: RemotingCommand) -> RemotingCommand:
    """Send one request to a broker, which must succeed."""
    assert address is not None
    answer = await answer_to(address, command)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer
