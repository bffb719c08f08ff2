"""Takes the volumes of another deployment's claims into the claims of a BrokerGroup, with their data in place.

A claim can't be renamed, and a BrokerGroup's are called after group and broker id. So each volume is kept (`Retain`), its claim
deleted, and the volume bound to a claim of the new name. Each step first reads what is there, so it may be ended anywhere and
begun again. What a volume came from is noted on it: without its old claim, nothing else would say so.

It uses the rights of the administrator; the operator needs none on volumes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import AlreadyExistsError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
)
from brokergroup_operator.migrate.adopt import Adoption, NamedStore, judge, record_of
from brokergroup_operator.migrate.plan import write_record
from brokergroup_operator.migrate.store_pods import failure_of, report_of, store_pod, store_pod_name
from brokergroup_operator.reconcile.see.foreign import parse_quantity
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.adopt import Member
    from brokergroup_operator.migrate.cut_over import Report

# On a volume: the claim that had it, as namespace/name, and its reclaim policy of before.
ANNOTATION_TAKEN_FROM: Final = f"{names.GROUP}/taken-from"
ANNOTATION_RECLAIM_POLICY: Final = f"{names.GROUP}/reclaim-policy"
POLL_SECONDS: Final = 0.25
RELEASE_SECONDS: Final = 60.0
BIND_SECONDS: Final = 120.0
ACCESS_MODE: Final = "ReadWriteOnce"
_Found = TypeVar("_Found")


class ClaimsError(Exception):
    """The claims can't be taken as they are; the message says what is in the way, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClaim:
    """A claim of the old deployment, and the folder of the store in its volume."""

    name: str
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to become of which claims, the master's first. `image`: the operator's, for the pods that read the volumes."""

    namespace: str
    group: str
    cluster_name: str
    broker_name: str
    sources: tuple[SourceClaim, ...]
    image: str
    pod_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One store's volume. `moved`: its old claim is gone, or it belongs to the new one already."""

    source: SourceClaim
    broker_id: int
    name: str
    claim: str
    moved: bool


class Takeover:
    """One group's. Raises ClaimsError, ApiError, or RecordInTheWayError; every verb may be called again."""

    def __init__(self, api: KubernetesApi, wish: Wish, report: Report) -> None:
        self._api, self._wish, self._report = api, wish, report

    async def plan(self, *, go_on: bool) -> Adoption:
        """Read the stores by a pod on each volume, and judge them. Nothing else is changed.

        `go_on`: a volume that an earlier run took from its claim, and has not bound yet, is bound first; otherwise an error.
        """
        volumes = await self._volumes()
        await self._check_free(volumes)
        for volume in volumes:
            if volume.moved and not await self._is_bound(volume):
                if not go_on:
                    what = f"volume {volume.name} is taken from claim {volume.source.name}, and not bound yet"
                    raise ClaimsError(f"{what}: say --yes to go on")
                await self._rebind(volume)
        return await self._judged(volumes)

    async def _is_bound(self, volume: Volume) -> bool:
        claim = await self._get_or_none(PERSISTENT_VOLUME_CLAIMS, volume.claim, self._wish.namespace)
        return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"

    async def run(self, adoption: Adoption) -> None:
        """Do what the plan says, which must not be blocked; at the end the record is there, and the BrokerGroup may be created."""
        for member, volume in zip(adoption.members, await self._volumes(), strict=True):
            if not volume.moved:
                await self._prepare(adoption, member, volume)
        for volume in await self._volumes():
            await self._rebind(volume)
            self._report("bound", claim=names.pod_name(self._wish.group, volume.broker_id), volume=volume.name)
        after = await self._judged(await self._volumes())
        if after.blocked:
            raise ClaimsError("; ".join(str(doubt) for doubt in after.doubts if doubt.blocks))
        await self._write_record(after)

    async def spec_of_group(self, adoption: Adoption) -> str:
        """Return what the BrokerGroup's spec must say to run on these volumes."""
        volumes = [(await self._api.get(PERSISTENT_VOLUMES, one.name))["spec"] for one in await self._volumes()]
        sizes = sorted((str(one["capacity"]["storage"]) for one in volumes), key=parse_quantity)
        return adoption.spec_of_group(size=sizes[0], storage_class=str(volumes[0].get("storageClassName") or ""))

    async def _write_record(self, adoption: Adoption) -> None:
        key = GroupKey(self._wish.namespace, self._wish.group)
        store = KubernetesRecordStore(self._api, namespace=key.namespace)
        try:
            record = record_of(adoption, group=key.name)
            standing = await write_record(store, key, record, replace_older=False)
        finally:
            await store.close()
        self._report("begun", group=str(key), record=standing.value, master=adoption.members[0].broker_id)

    # ---- what is there

    async def _volumes(self) -> list[Volume]:
        return [await self._volume(number, one) for number, one in enumerate(self._wish.sources, start=1)]

    async def _volume(self, broker_id: int, source: SourceClaim) -> Volume:
        wish, new = self._wish, names.pod_name(self._wish.group, broker_id)
        claim = await self._get_or_none(PERSISTENT_VOLUME_CLAIMS, source.name, wish.namespace)
        if claim is not None:
            name = str(claim["spec"].get("volumeName") or "")
            if not name or (claim.get("status") or {}).get("phase") != "Bound":
                raise ClaimsError(f"claim {source.name} is not bound to a volume")
            return Volume(source=source, broker_id=broker_id, name=name, claim=source.name, moved=False)
        listed = await self._api.list(PERSISTENT_VOLUMES)
        mark = f"{wish.namespace}/{source.name}"
        found = [one for one in listed.items if _annotations(one).get(ANNOTATION_TAKEN_FROM) == mark]
        if len(found) != 1:
            raise ClaimsError(
                f"there is no claim {source.name} in namespace {wish.namespace}, nor one volume taken from it"
            )
        name = str(found[0]["metadata"]["name"])
        return Volume(source=source, broker_id=broker_id, name=name, claim=new, moved=True)

    async def _check_free(self, volumes: list[Volume]) -> None:
        """Raise ClaimsError if the names are taken, or a pod uses one of the claims."""
        wish = self._wish
        if await self._get_or_none(BROKER_GROUPS, wish.group, wish.namespace) is not None:
            raise ClaimsError(
                f"BrokerGroup {wish.group} exists: it is created when its claims and its record are there"
            )
        for volume in volumes:
            new = names.pod_name(wish.group, volume.broker_id)
            there = await self._get_or_none(PERSISTENT_VOLUME_CLAIMS, new, wish.namespace)
            if there is not None and there["spec"].get("volumeName") != volume.name:
                raise ClaimsError(f"claim {new} exists and has another volume: choose another group name, or delete it")
        used = {volume.claim for volume in volumes}
        ours = {store_pod_name(wish.group, volume.broker_id) for volume in volumes}
        for pod in (await self._api.list(PODS, namespace=wish.namespace)).items:
            if pod["metadata"]["name"] not in ours and (claims := _claims_of(pod) & used):
                raise ClaimsError(
                    f"pod {pod['metadata']['name']}{_controller_of(pod)} uses claim {', '.join(sorted(claims))}:"
                    " stop the old brokers first, slaves after the master, and leave their claims"
                )

    async def _judged(self, volumes: list[Volume]) -> Adoption:
        said = []
        for volume in volumes:
            folder = "" if volume.moved else volume.source.folder
            pod = await self._run_pod(volume, ["check"], folder=folder, read_only=True)
            failure = failure_of(pod)
            said.append(NamedStore(name=volume.source.name, said=failure or report_of(pod)))
        return judge(said, cluster_name=self._wish.cluster_name, broker_name=self._wish.broker_name)

    # ---- what is done

    async def _prepare(self, adoption: Adoption, member: Member, volume: Volume) -> None:
        own = adoption.identity_of(member)
        verb = ["prepare", "--cluster", own.cluster_name, "--broker-name", own.broker_name]
        verb += ["--broker-id", str(own.broker_id)]
        pod = await self._run_pod(volume, verb, folder=volume.source.folder, read_only=False)
        if failure := failure_of(pod):
            raise ClaimsError(f"claim {volume.source.name}: {failure}")
        if (now := report_of(pod)).end != member.report.end:
            raise ClaimsError(
                f"claim {volume.source.name}: its log ended at {member.report.end}, and at {now.end} a moment later:"
                " something writes to it"
            )
        self._report("prepared", claim=volume.source.name, broker_id=own.broker_id, end=now.end)

    async def _rebind(self, volume: Volume) -> None:
        """Give the volume to the claim of its new name."""
        wish, new = self._wish, names.pod_name(self._wish.group, volume.broker_id)
        obj = await self._api.get(PERSISTENT_VOLUMES, volume.name)
        if ACCESS_MODE not in (obj["spec"].get("accessModes") or []):
            raise ClaimsError(
                f"volume {volume.name} does not allow {ACCESS_MODE}, which a BrokerGroup's claims ask for"
            )
        if ANNOTATION_RECLAIM_POLICY not in _annotations(obj):
            policy = str(obj["spec"].get("persistentVolumeReclaimPolicy") or "Retain")
            marks = {ANNOTATION_TAKEN_FROM: f"{wish.namespace}/{volume.source.name}", ANNOTATION_RECLAIM_POLICY: policy}
            await self._patch_volume(
                volume.name,
                {"metadata": {"annotations": marks}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}},
            )
        await self._release(volume)
        obj = await self._api.get(PERSISTENT_VOLUMES, volume.name)
        if (obj["spec"].get("claimRef") or {}).get("name") != new:
            # Without a uid: the volume waits for a claim of this name, and for no other.
            reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": wish.namespace, "name": new}
            gone = {"uid": None, "resourceVersion": None}
            await self._patch_volume(volume.name, {"spec": {"claimRef": reference | gone}})
        await self._make_claim(volume, obj)
        policy = _annotations(obj)[ANNOTATION_RECLAIM_POLICY]
        await self._patch_volume(
            volume.name,
            {
                "metadata": {"annotations": {ANNOTATION_RECLAIM_POLICY: None}},
                "spec": {"persistentVolumeReclaimPolicy": policy},
            },
        )

    async def _release(self, volume: Volume) -> None:
        wish = self._wish
        claim = await self._get_or_none(PERSISTENT_VOLUME_CLAIMS, volume.source.name, wish.namespace)
        if claim is None:
            return
        metadata = claim["metadata"]
        await self._api.delete(
            PERSISTENT_VOLUME_CLAIMS, metadata["name"], namespace=wish.namespace, uid=metadata["uid"]
        )

        async def gone() -> bool:
            return await self._get_or_none(PERSISTENT_VOLUME_CLAIMS, volume.source.name, wish.namespace) is None

        await _until(gone, RELEASE_SECONDS, f"claim {volume.source.name} is not gone: a pod uses it still")

    async def _make_claim(self, volume: Volume, obj: JsonObject) -> None:
        wish, name = self._wish, names.pod_name(self._wish.group, volume.broker_id)
        labels = {
            names.LABEL_APP_NAME: names.APP_NAME,
            names.LABEL_APP_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_BROKER_GROUP: wish.group,
            names.LABEL_BROKER_ID: str(volume.broker_id),
        }
        spec = {
            "accessModes": [ACCESS_MODE],
            "resources": {"requests": {"storage": obj["spec"]["capacity"]["storage"]}},
            # The empty name too: a claim without one would get the default class, and wait for a volume of that.
            "storageClassName": obj["spec"].get("storageClassName") or "",
            "volumeName": volume.name,
        }
        metadata = {"name": name, "namespace": wish.namespace, "labels": labels}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        try:
            await self._api.create(PERSISTENT_VOLUME_CLAIMS, claim)
        except AlreadyExistsError:
            there = await self._api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=wish.namespace)
            if there["spec"].get("volumeName") != volume.name:
                raise ClaimsError(f"claim {name} exists and has another volume: delete it, and begin again") from None

        bound = partial(self._is_bound, replace(volume, claim=name))
        await _until(bound, BIND_SECONDS, f"claim {name} is not bound to volume {volume.name}")

    async def _run_pod(self, volume: Volume, verb: list[str], *, folder: str, read_only: bool) -> JsonObject:
        """Run one command on the volume, and return the pod as it ended. The pod is deleted, before and after."""
        wish = self._wish
        name = store_pod_name(wish.group, volume.broker_id)
        await self._delete_pod(name)
        made = store_pod(wish.namespace, name, wish.image, volume.claim, verb, folder=folder, read_only=read_only)
        await self._api.create(PODS, made)

        async def ended() -> JsonObject | None:
            pod = await self._api.get(PODS, name, namespace=wish.namespace)
            return pod if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"} else None

        slow = f"pod {name} has not ended: kubectl -n {wish.namespace} describe pod {name}"
        pod = await _until(ended, wish.pod_seconds, slow)
        await self._delete_pod(name)
        return pod

    async def _delete_pod(self, name: str) -> None:
        namespace = self._wish.namespace

        async def gone() -> bool:
            pod = await self._get_or_none(PODS, name, namespace)
            if pod is not None and "deletionTimestamp" not in pod["metadata"]:
                await self._api.delete(PODS, name, namespace=namespace, uid=pod["metadata"]["uid"])
            return pod is None

        await _until(gone, RELEASE_SECONDS, f"pod {name} is not gone")

    async def _patch_volume(self, name: str, patch: JsonObject) -> None:
        await self._api.patch(PERSISTENT_VOLUMES, name, patch)

    async def _get_or_none(self, resource: Any, name: str, namespace: str) -> JsonObject | None:
        try:
            return await self._api.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None


async def _until(look: Callable[[], Awaitable[_Found | None]], seconds: float, otherwise: str) -> _Found:
    """Return `look`'s first true result. Raises ClaimsError with `otherwise` at the deadline."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if found := await look():
                    return found
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise ClaimsError(f"{otherwise} (waited {seconds:g} s)") from error


def _annotations(obj: JsonObject) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def _claims_of(pod: JsonObject) -> set[str]:
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return set()
    volumes = pod["spec"].get("volumes") or []
    return {str(one["persistentVolumeClaim"]["claimName"]) for one in volumes if "persistentVolumeClaim" in one}


def _controller_of(pod: JsonObject) -> str:
    owners = [one for one in pod["metadata"].get("ownerReferences") or [] if one.get("controller")]
    return f" of {owners[0]['kind']} {owners[0]['name']}" if owners else ""
