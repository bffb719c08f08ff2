"""Runs a command of `brokergroup adopt` in a pod on a claim, and reads what its message says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.migrate.store_pods import is_store_pod, message_of, report_of, store_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.stores import StoreReport

POLL_SECONDS: Final = 0.25
RELEASE_SECONDS: Final = 60.0
_Found = TypeVar("_Found")


class ClaimsError(Exception):
    """The claims can't be taken or released as they are; the message says what is in the way, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePods:
    """The pods of one command. `image`: the operator's; a pod may take `seconds`."""

    api: KubernetesApi
    namespace: str
    image: str
    seconds: float

    async def run(self, name: str, claim: str, verb: list[str], *, folder: str = "", read_only: bool) -> JsonObject:
        """Run one command on the claim, and return the pod as it ended. The pod is deleted, before and after."""
        await self._delete(name)
        made = await self.api.create(
            PODS,
            store_pod(
                self.namespace, name, self.image, claim, verb, folder=folder, read_only=read_only, seconds=self.seconds
            ),
        )

        async def ended() -> JsonObject | None:
            pod = await get_or_none(self.api, PODS, name, self.namespace)
            if pod is None or pod["metadata"]["uid"] != made["metadata"]["uid"]:
                raise ClaimsError(f"pod {name} was deleted meanwhile: does another run of this command go on?")
            return pod if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"} else None

        slow = f"pod {name} has not ended: kubectl -n {self.namespace} describe pod {name}"
        pod = await until(ended, self.seconds, slow)
        await self._delete(name)
        return pod

    async def _delete(self, name: str) -> None:
        async def gone() -> bool:
            pod = await get_or_none(self.api, PODS, name, self.namespace)
            if pod is not None and not is_store_pod(pod):
                raise ClaimsError(f"pod {name} is not of this command: choose another group name")
            if pod is not None and "deletionTimestamp" not in pod["metadata"]:
                await self.api.delete(PODS, name, namespace=self.namespace, uid=pod["metadata"]["uid"])
            return pod is None

        await until(gone, RELEASE_SECONDS, f"pod {name} is not gone")


async def get_or_none(api: KubernetesApi, resource: Any, name: str, namespace: str) -> JsonObject | None:
    """Return the object; None if there is none."""
    try:
        return await api.get(resource, name, namespace=namespace)
    except NotFoundError:
        return None


async def until(look: Callable[[], Awaitable[_Found | None]], seconds: float, otherwise: str) -> _Found:
    """Return `look`'s first true result. Raises ClaimsError with `otherwise` at the deadline."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if found := await look():
                    return found
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise ClaimsError(f"{otherwise} (waited {seconds:g} s)") from error


def report_in(claim: str, pod: JsonObject) -> StoreReport:
    """Return what a pod that succeeded has found on the claim. Raises ClaimsError for a message that is none of ours."""
    try:
        return report_of(pod)
    except msgspec.MsgspecError as error:
        raise ClaimsError(
            f"claim {claim}: pod {pod['metadata']['name']} says {message_of(pod)[:200]!r}, expected a report ({error})"
        ) from error


def claims_of(pod: JsonObject) -> set[str]:
    """Return the claims that a pod uses; none once it has ended."""
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return set()
    volumes = pod["spec"].get("volumes") or []
    return {str(one["persistentVolumeClaim"]["claimName"]) for one in volumes if "persistentVolumeClaim" in one}


def controller_of(pod: JsonObject) -> str:
    """Return the workload that a pod is of, for a message; empty without one."""
    owners = [one for one in pod["metadata"].get("ownerReferences") or [] if one.get("controller")]
    return f" of {owners[0]['kind']} {owners[0]['name']}" if owners else ""
