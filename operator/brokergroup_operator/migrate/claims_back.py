"""Releases the claims of a hibernated BrokerGroup to a Java controller or to static roles, with their data in place.

First the claims are marked: the operator starts no broker on a marked claim, also if a GitOps tool creates the BrokerGroup again
within seconds. Then the BrokerGroup goes; its claims stay (`retention.whenDeleted: Retain`). Then each store is released, and the
record goes last. A run that was cut off is begun again: what is left of the group says how far it came.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.kube.errors import ConflictError
from brokergroup_operator.kube.resources import BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.migrate.adopt import NamedStore
from brokergroup_operator.migrate.departure import Departure, Leaver, Target, judge_departure
from brokergroup_operator.migrate.pod_runs import (
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
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractAsyncContextManager

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube import KubernetesApi
    from brokergroup_operator.migrate.cut_over import Report
    from brokergroup_operator.records.store import StoredRecord
    from controller_core.model import BrokerGroupRecord

# The operator deletes what it made for a hibernated group, which has no pods, within seconds.
DELETE_SECONDS: Final = 120.0
# So long the delete is repeated that another writer of the group comes before.
CHANGE_SECONDS: Final = 30.0
RETAIN: Final = "Retain"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackWish:
    """Which group goes where. `image`: the operator's, for the pods that change the volumes."""

    namespace: str
    group: str
    target: Target
    image: str
    controllers: str = ""
    pod_seconds: float = 600.0


def sole_release(api: KubernetesApi, wish: BackWish) -> AbstractAsyncContextManager[None]:
    """Keep other runs of adopt for this group away meanwhile, in either direction."""
    return sole_run(api, namespace=wish.namespace, name=f"{wish.group}-adopt", what=f"adopt for group {wish.group}")


class ClaimsBack:
    """One group's, while `sole_release` is held. Every verb may be called again. Raises ClaimsError, ApiError, RecordStoreError."""

    def __init__(self, api: KubernetesApi, wish: BackWish, report: Report) -> None:
        self._api, self._wish, self._report = api, wish, report
        self._pods = StorePods(api=api, namespace=wish.namespace, image=wish.image, seconds=wish.pod_seconds)
        self._key = GroupKey(wish.namespace, wish.group)

    async def plan(self) -> Departure:
        """Read the stores by a pod on each claim, and judge them. Nothing is changed."""
        stored = await self._stored()
        group = await self._group()
        if group is not None:
            await self._check_not_made_again(group, stored.record)
            self._check_at_rest(group)
        return await self._judged(stored)

    async def further_properties(self, departure: Departure) -> dict[str, str]:
        """Return the BrokerGroup's spec.config; once it is deleted, as the run that marked the claims has noted it there."""
        if (group := await self._group()) is not None:
            config = (group.get("spec") or {}).get("config") or {}
            return {str(key): str(value) for key, value in config.items()}
        for one in departure.members:
            if (noted := (await self._marks(one.name)).get(names.ANNOTATION_RELEASED_CONFIG)) is not None:
                return _config_in(noted, one.name)
        return {}

    async def run(self, departure: Departure, further: Mapping[str, str]) -> None:
        """Do what the plan says, which must not be blocked. At the end only the claims are left of the group.

        `further`: the BrokerGroup's spec.config, for a later run.
        """
        claims = [one.name for one in departure.members]
        await self._check_claims(claims)
        await self._mark(claims, further)
        try:
            deleted = await self._delete_group()
        except ClaimsError:
            # The group stays, and is to run on its claims: unless an earlier run has released one of them.
            if all(one.report.released is None for one in departure.members):
                await self._mark(claims, None)
            raise
        await self._await_end_of(deleted)
        await self._check_claims(claims)
        for one in departure.members:
            await self._check_unused(claims)
            await self._release(one)
        stored = await self._stored()
        after = await self._judged(stored)
        if after.blocked or not after.is_released:
            doubts = "; ".join(str(doubt) for doubt in after.doubts if doubt.blocks) or "a store is not released"
            raise ClaimsError(f"the record stays: {doubts}")
        if await self._group() is not None:
            raise ClaimsError(f"the record stays: {self._made_again}")
        await self._remove_record(stored)

    # ---- what is there

    @property
    def _made_again(self) -> str:
        return (
            f"BrokerGroup {self._wish.group} was made again meanwhile. No broker of it starts. Take it out of what makes it"
            " (a RocketMQCluster, Argo CD, Flux), delete it, and run this again"
        )

    def _claims_of(self, record: BrokerGroupRecord) -> dict[str, int]:
        """Return the members' claims, each with the last id on it: a pod that lost its disk keeps its name under another id."""
        members = sorted(broker_id for broker_id, one in record.replicas.items() if one.claimed)
        return {record.replicas[one].reserved_for or names.pod_name(self._wish.group, one): one for one in members}

    async def _group(self) -> JsonObject | None:
        return await get_or_none(self._api, BROKER_GROUPS, self._wish.group, self._wish.namespace)

    async def _marks(self, claim: str) -> dict[str, str]:
        """Return the claim's annotations; none if it is gone."""
        found = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, claim, self._wish.namespace)
        return (found or {"metadata": {}})["metadata"].get("annotations") or {}

    async def _check_not_made_again(self, group: JsonObject, record: BrokerGroupRecord) -> None:
        """Raise ClaimsError for a group that is to run, and can't, since an earlier run has marked its claims."""
        if _is_hibernated(group):
            return
        for claim in self._claims_of(record):
            if names.ANNOTATION_RELEASED_TO in await self._marks(claim):
                raise ClaimsError(
                    f"BrokerGroup {self._wish.group} is not Hibernated: it was woken or made again after its claims were released:"
                    " delete it, or hibernate it, and run this again"
                )

    def _check_at_rest(self, group: JsonObject) -> None:
        """Raise ClaimsError unless the group is hibernated and its claims outlive it."""
        spec, name = group.get("spec") or {}, self._wish.group
        if not _is_hibernated(group) or not _has_stopped(group):
            raise ClaimsError(
                f"BrokerGroup {name} is not Hibernated: wait until it is FailoverSafe, then kubectl brokergroup hibernate {name},"
                " and wait until nothing of it runs"
            )
        retention = (spec.get("storage") or {}).get("retention") or {}
        if retention.get("whenDeleted", RETAIN) != RETAIN:
            raise ClaimsError(
                f"BrokerGroup {name} has storage.retention.whenDeleted {retention['whenDeleted']}, expected Retain: its claims"
                " would go with it"
            )

    async def _stored(self) -> StoredRecord:
        store = KubernetesRecordStore(self._api, namespace=self._key.namespace)
        try:
            stored = await store.read(self._key)
        finally:
            await store.close()
        if stored is None:
            raise ClaimsError(f"there is no record BrokerGroupState {self._key}: the group has left, or there was none")
        return stored

    async def _judged(self, stored: StoredRecord) -> Departure:
        said = []
        claims = self._claims_of(stored.record)
        await self._check_unused(claims)
        for claim, broker_id in claims.items():
            # A member without its claim stays out of the list: the plan says that it is missing.
            if await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, claim, self._wish.namespace) is None:
                continue
            pod = await self._pods.run(store_pod_name(self._wish.group, broker_id), claim, ["check"], read_only=True)
            said.append(NamedStore(name=claim, said=failure_of(pod) or report_in(claim, pod)))
        return judge_departure(stored.record, said, self._wish.target, controllers=self._wish.controllers)

    async def _check_unused(self, claims: Collection[str]) -> None:
        for pod in (await self._api.list(PODS, namespace=self._wish.namespace)).items:
            # One that an earlier run left behind is deleted before the next of its name begins.
            is_ours = is_store_pod(pod) and pod["metadata"]["name"].startswith(f"{self._wish.group}-adopt-")
            if not is_ours and (used := claims_of(pod) & set(claims)):
                raise ClaimsError(
                    f"pod {pod['metadata']['name']}{controller_of(pod)} uses claim {', '.join(sorted(used))}: stop it first"
                )

    # ---- what is done

    async def _mark(self, claims: list[str], further: Mapping[str, str] | None) -> None:
        """Keep the operator from starting a broker on these claims; with None, let it."""
        target = None if further is None else self._wish.target.value
        config = None if further is None else msgspec.json.encode(further).decode()
        annotations = {names.ANNOTATION_RELEASED_TO: target, names.ANNOTATION_RELEASED_CONFIG: config}
        for claim in claims:
            await self._api.patch(
                PERSISTENT_VOLUME_CLAIMS,
                claim,
                {"metadata": {"annotations": annotations}},
                namespace=self._wish.namespace,
            )

    async def _delete_group(self) -> str:
        """Delete the group as it was read: woken, or given another retention meanwhile, it stays. Return its uid."""

        async def asked() -> str:
            group = await self._group()
            if group is None:
                return "none"
            self._check_at_rest(group)
            metadata = group["metadata"]
            with contextlib.suppress(ConflictError):
                await self._api.delete(
                    BROKER_GROUPS, metadata["name"], namespace=self._wish.namespace,
                    uid=metadata["uid"], resource_version=metadata["resourceVersion"],
                )  # fmt: skip
                return str(metadata["uid"])
            return ""

        return await until(asked, CHANGE_SECONDS, f"BrokerGroup {self._wish.group} changes all the time")

    async def _await_end_of(self, uid: str) -> None:
        async def gone() -> bool:
            group = await self._group()
            if group is not None and group["metadata"]["uid"] != uid:
                raise ClaimsError(self._made_again)
            return group is None

        await until(gone, DELETE_SECONDS, f"BrokerGroup {self._wish.group} is not gone: does its operator run?")
        self._report("deleted", group=str(self._key))

    async def _check_claims(self, claims: list[str]) -> None:
        for claim in claims:
            there = await get_or_none(self._api, PERSISTENT_VOLUME_CLAIMS, claim, self._wish.namespace)
            if there is None or "deletionTimestamp" in there["metadata"]:
                raise ClaimsError(f"claim {claim} is gone or going: nothing was released, and the record stays")

    async def _release(self, one: Leaver) -> None:
        verb = ["release", "--yes", "--to", self._wish.target.value]
        pod = await self._pods.run(store_pod_name(self._wish.group, one.broker_id), one.name, verb, read_only=False)
        if failure := failure_of(pod):
            raise ClaimsError(f"claim {one.name}: {failure}")
        self._report("released", claim=one.name, end=report_in(one.name, pod).end)

    async def _remove_record(self, stored: StoredRecord) -> None:
        store = KubernetesRecordStore(self._api, namespace=self._key.namespace)
        try:
            await store.commit(self._key, None, stored)
        finally:
            await store.close()
        self._report("removed", group=str(self._key))


def _config_in(noted: str, claim: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(noted, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ClaimsError(
            f"claim {claim} has annotation {names.ANNOTATION_RELEASED_CONFIG} {noted[:100]!r}, expected keys and values in JSON"
            f" ({error})"
        ) from error


def _is_hibernated(group: JsonObject) -> bool:
    return bool(((group.get("spec") or {}).get("maintenance") or {}).get("hibernated"))


def _has_stopped(group: JsonObject) -> bool:
    """Whether its operator has seen this spec, and says that nothing of it runs."""
    conditions = (group.get("status") or {}).get("conditions") or []
    found: JsonObject = next((one for one in conditions if one.get("type") == ConditionType.HIBERNATED), {})
    has_seen = found.get("observedGeneration") in {None, group["metadata"].get("generation")}
    return has_seen and (found.get("status"), found.get("reason")) == ("True", Reason.NOTHING_RUNS)
