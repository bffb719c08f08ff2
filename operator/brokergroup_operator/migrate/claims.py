"""Takes the volumes of another deployment's claims into the claims of a BrokerGroup, with their data in place.

A claim can't be renamed, and a BrokerGroup's are called after group and broker id. So each volume is kept (`Retain`), its claim
deleted, and the volume bound to a claim of the new name. Each step first reads what is there, so it may be ended anywhere and
begun again. What a volume came from is noted on it: without its old claim, nothing else would say so.

It uses the rights of the administrator; the operator needs none on volumes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import AlreadyExistsError, ConflictError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
)
from brokergroup_operator.migrate.adopt import Adoption, NamedStore, judge, record_of
from brokergroup_operator.migrate.plan import check_record, write_record
from brokergroup_operator.migrate.pod_runs import (
    RELEASE_SECONDS,
    ClaimsError,
    StorePods,
    claims_of,
    controller_of,
    get_or_none,
    report_in,
    until,
)
from brokergroup_operator.migrate.sole_run import sole_run
from brokergroup_operator.migrate.store_pods import failure_of, is_store_pod, store_pod_name
from brokergroup_operator.reconcile.see.foreign import parse_quantity
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.adopt import Member
    from brokergroup_operator.migrate.cut_over import Report

# On a volume: the claim that had it, as namespace/name, and its reclaim policy of before.
ANNOTATION_TAKEN_FROM: Final = f"{names.GROUP}/taken-from"
ANNOTATION_RECLAIM_POLICY: Final = f"{names.GROUP}/reclaim-policy"
BIND_SECONDS: Final = 120.0
# So long a write is repeated that another writer of the same volume comes before.
CHANGE_SECONDS: Final = 30.0
ACCESS_MODE: Final = "ReadWriteOnce"


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


def sole_adoption(api: KubernetesApi, wish: Wish) -> AbstractAsyncContextManager[None]:
    """Keep other runs for this group away meanwhile: each would delete the other's pods, and may name another master."""
    return sole_run(api, namespace=wish.namespace, name=f"{wish.group}-adopt", what=f"adopt for group {wish.group}")


class Takeover:
    """One group's, while `sole_adoption` is held. Every verb may be called again.

    Raises ClaimsError, ApiError, or RecordInTheWayError.
    """

    def __init__(self, api: KubernetesApi, wish: Wish, report: Report) -> None:
        self._api, self._wish, self._report = api, wish, report
        self._pods = StorePods(api=api, namespace=wish.namespace, image=wish.image, seconds=wish.pod_seconds)

    async def plan(self, *, go_on: bool) -> Adoption:
        """Read the stores by a pod on each volume, and judge them. Nothing else is changed.

        `go_on`: a volume that an earlier run took from its claim, and has not bound yet, is bound first; otherwise an error.
        """
        self._check_names()
        volumes = await self._volumes()
        await self._check_free(volumes)
        for volume in volumes:
            if volume.moved and not await self._is_bound(volume):
                if not go_on:
                    what = f"volume {volume.name} is taken from claim {volume.source.name}, and not bound yet"
                    raise ClaimsError(f"{what}: say --yes to go on")
                await self._rebind(volume)
        adoption = await self._judged(volumes)
        if not adoption.blocked:
            await self._check_record(adoption)
        return adoption

    async def _is_bound(self, volume: Volume) -> bool:
        claim = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, volume.claim, self._wish.namespace)
        return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"

    async def run(self, adoption: Adoption) -> None:
        """Do what the plan says, which must not be blocked; at the end the record is there, and the BrokerGroup may be created."""
        for member, volume in zip(adoption.members, await self._volumes(), strict=True):
            # A volume that an earlier run moved may have been named at another position then, and have its id.
            renewed = ((adoption.renewed_epoch, 0),) if adoption.renewed_epoch else member.report.epochs
            ready = member.report.identity == adoption.identity_of(member) and member.report.epochs == renewed
            if not volume.moved or not ready:
                await self._check_free([volume])
                await self._prepare(adoption, member, volume)
        for volume in await self._volumes():
            await self._check_free([volume])
            await self._rebind(volume)
            self._report("bound", claim=names.pod_name(self._wish.group, volume.broker_id), volume=volume.name)
        after = await self._judged(await self._volumes())
        if after.blocked:
            raise ClaimsError("; ".join(str(doubt) for doubt in after.doubts if doubt.blocks))
        await self._check_free(await self._volumes())
        await self._write_record(after)
        for volume in await self._volumes():
            await self._let_start(volume)

    async def spec_of_group(self, adoption: Adoption) -> str:
        """Return what the BrokerGroup's spec must say to run on these volumes."""
        volumes = [(await self._api.get(PERSISTENT_VOLUMES, one.name))["spec"] for one in await self._volumes()]
        sizes = sorted((str(one["capacity"]["storage"]) for one in volumes), key=parse_quantity)
        return adoption.spec_of_group(size=sizes[0], storage_class=str(volumes[0].get("storageClassName") or ""))

    async def _check_record(self, adoption: Adoption) -> None:
        """Raise RecordInTheWayError if the record could not be written at the end, when the volumes have moved already."""
        key = GroupKey(self._wish.namespace, self._wish.group)
        store = KubernetesRecordStore(self._api, namespace=key.namespace)
        try:
            stored = await store.read(key)
        finally:
            await store.close()
        planned = record_of(adoption, group=key.name)
        check_record(key, stored.record if stored is not None else None, planned, replace_older=False)

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

    def _check_names(self) -> None:
        """Raise ClaimsError for a claim that has a name of the group's: it would be deleted, and made again for its volume."""
        group = self._wish.group
        new = {names.pod_name(group, number): number for number in range(1, len(self._wish.sources) + 1)}
        for source in self._wish.sources:
            if not source.name:
                raise ClaimsError("--claim has no name, expected CLAIM or CLAIM:FOLDER")
            if source.name in new:
                raise ClaimsError(
                    f"claim {source.name} has the name that group {group} gives to broker {new[source.name]}:"
                    " choose another group name"
                )

    async def _volumes(self) -> list[Volume]:
        listed = {str(one["metadata"]["name"]): one for one in (await self._api.list(PERSISTENT_VOLUMES)).items}
        volumes = [await self._volume(number, one, listed) for number, one in enumerate(self._wish.sources, start=1)]
        for one in volumes:
            if ACCESS_MODE not in (listed.get(one.name, {}).get("spec", {}).get("accessModes") or [ACCESS_MODE]):
                raise ClaimsError(
                    f"volume {one.name} does not allow {ACCESS_MODE}, which a BrokerGroup's claims ask for"
                )
        return volumes

    async def _volume(self, broker_id: int, source: SourceClaim, listed: dict[str, JsonObject]) -> Volume:
        wish, new = self._wish, names.pod_name(self._wish.group, broker_id)
        mark = f"{wish.namespace}/{source.name}"
        taken = {name: one for name, one in listed.items() if _annotations(one).get(ANNOTATION_TAKEN_FROM) == mark}
        claim = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, source.name, wish.namespace)
        if claim is not None:
            name = str(claim["spec"].get("volumeName") or "")
            begun = [one for one in taken if one != name and ANNOTATION_RECLAIM_POLICY in _annotations(taken[one])]
            if begun:
                raise ClaimsError(
                    f"claim {source.name} has volume {name or 'none'}, and {begun[0]} was taken from it: the claim was made again"
                    " meanwhile. Scale its StatefulSet to 0, look what is on the new volume, and delete the claim"
                )
            if not name or (claim.get("status") or {}).get("phase") != "Bound":
                raise ClaimsError(f"claim {source.name} is not bound to a volume")
            return Volume(source=source, broker_id=broker_id, name=name, claim=source.name, moved=False)
        # The mark stays on a volume for ever. It is ours to go on with only while no other claim is to have it.
        ours = {mark, f"{wish.namespace}/{new}"}
        found = [name for name, one in taken.items() if _claim_of(one) in ours]
        if len(found) != 1:
            others = [
                f"volume {name}, once of claim {source.name}, is for claim {_claim_of(one)}"
                for name, one in taken.items()
            ]
            raise ClaimsError(
                f"there is no claim {source.name} in namespace {wish.namespace}, nor one volume taken from it"
                f" for claim {new}{''.join(f'; {one}' for one in others)}"
            )
        return Volume(source=source, broker_id=broker_id, name=found[0], claim=new, moved=True)

    async def _check_free(self, volumes: list[Volume]) -> None:
        """Raise ClaimsError if the names are taken, or a pod uses one of the claims."""
        wish = self._wish
        if await get_or_none(self._api, BROKER_GROUPS, wish.group, wish.namespace) is not None:
            raise ClaimsError(
                f"BrokerGroup {wish.group} exists: it is created when its claims and its record are there"
            )
        for volume in volumes:
            new = names.pod_name(wish.group, volume.broker_id)
            there = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, new, wish.namespace)
            if there is not None and there["spec"].get("volumeName") != volume.name:
                raise ClaimsError(f"claim {new} exists and has another volume: choose another group name")
        used = {volume.claim for volume in volumes}
        ours = {store_pod_name(wish.group, volume.broker_id) for volume in volumes}
        for pod in (await self._api.list(PODS, namespace=wish.namespace)).items:
            is_reader = pod["metadata"]["name"] in ours
            if is_reader and not is_store_pod(pod):
                raise ClaimsError(f"pod {pod['metadata']['name']} is not of this command: choose another group name")
            if not is_reader and (claims := claims_of(pod) & used):
                raise ClaimsError(
                    f"pod {pod['metadata']['name']}{controller_of(pod)} uses claim {', '.join(sorted(claims))}:"
                    " stop the old brokers first, slaves after the master, and leave their claims"
                )

    async def _judged(self, volumes: list[Volume]) -> Adoption:
        said = []
        for volume in volumes:
            folder = "" if volume.moved else volume.source.folder
            pod = await self._pods.run(
                store_pod_name(self._wish.group, volume.broker_id),
                volume.claim,
                ["check"],
                folder=folder,
                read_only=True,
            )
            failure = failure_of(pod)
            said.append(NamedStore(name=volume.source.name, said=failure or report_in(volume.source.name, pod)))
        return judge(said, cluster_name=self._wish.cluster_name, broker_name=self._wish.broker_name)

    # ---- what is done

    async def _prepare(self, adoption: Adoption, member: Member, volume: Volume) -> None:
        own = adoption.identity_of(member)
        verb = ["prepare", "--yes", "--cluster", own.cluster_name, "--broker-name", own.broker_name]
        verb += ["--broker-id", str(own.broker_id)]
        verb += ["--renew-epoch", str(adoption.renewed_epoch)] if adoption.renewed_epoch else []
        folder = "" if volume.moved else volume.source.folder
        pod = await self._pods.run(
            store_pod_name(self._wish.group, volume.broker_id), volume.claim, verb, folder=folder, read_only=False
        )
        if failure := failure_of(pod):
            raise ClaimsError(f"claim {volume.source.name}: {failure}")
        if (now := report_in(volume.source.name, pod)).end != member.report.end:
            raise ClaimsError(
                f"claim {volume.source.name}: its log ended at {member.report.end}, and at {now.end} a moment later:"
                " something writes to it"
            )
        self._report("prepared", claim=volume.source.name, broker_id=own.broker_id, end=now.end)

    async def _rebind(self, volume: Volume) -> None:
        """Give the volume to the claim of its new name."""
        await until(partial(self._retain, volume), CHANGE_SECONDS, f"volume {volume.name} changes all the time")
        await self._release(volume)
        await until(partial(self._reserve, volume), CHANGE_SECONDS, f"volume {volume.name} changes all the time")
        obj = await self._api.get(PERSISTENT_VOLUMES, volume.name)
        await self._make_claim(volume, obj)
        # Another run may have ended before this one: then the volume has its policy back already.
        if policy := _annotations(obj).get(ANNOTATION_RECLAIM_POLICY):
            await self._api.patch(
                PERSISTENT_VOLUMES,
                volume.name,
                {
                    "metadata": {"annotations": {ANNOTATION_RECLAIM_POLICY: None}},
                    "spec": {"persistentVolumeReclaimPolicy": policy},
                },
            )

    async def _retain(self, volume: Volume) -> bool:
        """Let the volume outlive its claim, and note on it which policy it had, and whose it was. False: it changed meanwhile."""
        obj = await self._api.get(PERSISTENT_VOLUMES, volume.name)
        policy = str(obj["spec"].get("persistentVolumeReclaimPolicy") or "Retain")
        if ANNOTATION_RECLAIM_POLICY in _annotations(obj) and policy == "Retain":
            return True
        source = f"{self._wish.namespace}/{volume.source.name}"
        annotations = {ANNOTATION_TAKEN_FROM: source, ANNOTATION_RECLAIM_POLICY: policy}
        return await self._patch_as_read(obj, annotations, {"persistentVolumeReclaimPolicy": "Retain"})

    async def _reserve(self, volume: Volume) -> bool:
        """Let the volume wait for the claim of its new name, and for no other. False: it changed meanwhile."""
        wish, new = self._wish, names.pod_name(self._wish.group, volume.broker_id)
        obj = await self._api.get(PERSISTENT_VOLUMES, volume.name)
        there = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, new, wish.namespace)
        holder = _claim_of(obj)
        if there is not None and holder == f"{wish.namespace}/{new}":
            return True
        if holder not in {f"{wish.namespace}/{new}", f"{wish.namespace}/{volume.source.name}", ""}:
            raise ClaimsError(f"volume {volume.name} is for claim {holder} by now, expected {wish.namespace}/{new}")
        # Without a uid: that of a claim that is gone would keep the new one away.
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": wish.namespace, "name": new}
        return await self._patch_as_read(obj, {}, {"claimRef": reference | {"uid": None, "resourceVersion": None}})

    async def _patch_as_read(self, obj: JsonObject, annotations: JsonObject, spec: JsonObject) -> bool:
        """Change a volume, unless it has changed since it was read: then return False."""
        metadata = {"annotations": annotations, "resourceVersion": obj["metadata"]["resourceVersion"]}
        try:
            await self._api.patch(PERSISTENT_VOLUMES, obj["metadata"]["name"], {"metadata": metadata, "spec": spec})
        except ConflictError:
            return False
        return True

    async def _release(self, volume: Volume) -> None:
        wish = self._wish
        claim = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, volume.source.name, wish.namespace)
        if claim is None:
            return
        metadata = claim["metadata"]
        if claim["spec"].get("volumeName") != volume.name:
            raise ClaimsError(
                f"claim {metadata['name']} has volume {claim['spec'].get('volumeName') or 'none'}, expected {volume.name}:"
                " it was made again meanwhile"
            )
        await self._api.delete(
            PERSISTENT_VOLUME_CLAIMS, metadata["name"], namespace=wish.namespace, uid=metadata["uid"]
        )

        async def gone() -> bool:
            return await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, volume.source.name, wish.namespace) is None

        await until(gone, RELEASE_SECONDS, f"claim {volume.source.name} is not gone: a pod uses it still")

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
        # Until the record is there no broker may start: any disk could be elected first.
        annotations = {names.ANNOTATION_ADOPT_UNFINISHED: "true"}
        metadata = {"name": name, "namespace": wish.namespace, "labels": labels, "annotations": annotations}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        try:
            await self._api.create(PERSISTENT_VOLUME_CLAIMS, claim)
        except AlreadyExistsError:
            there = await self._api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=wish.namespace)
            if there["spec"].get("volumeName") != volume.name:
                raise ClaimsError(f"claim {name} exists and has another volume, expected {volume.name}") from None

        bound = partial(self._is_bound, replace(volume, claim=name))
        await until(bound, BIND_SECONDS, f"claim {name} is not bound to volume {volume.name}")

    async def _let_start(self, volume: Volume) -> None:
        annotations = {names.ANNOTATION_ADOPT_UNFINISHED: None}
        name, namespace = names.pod_name(self._wish.group, volume.broker_id), self._wish.namespace
        await self._api.patch(
            PERSISTENT_VOLUME_CLAIMS, name, {"metadata": {"annotations": annotations}}, namespace=namespace
        )


def _annotations(obj: JsonObject) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def _claim_of(volume: JsonObject) -> str:
    """Return the claim that a volume is reserved for, as namespace/name; empty without one."""
    reference = volume["spec"].get("claimRef")
    return f"{reference['namespace']}/{reference['name']}" if reference else ""
