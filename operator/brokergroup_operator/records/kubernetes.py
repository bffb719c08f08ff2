"""The record store in Kubernetes: one ``BrokerGroupState`` object per group. The Kubernetes API is the consensus.

A read is a GET without resourceVersion (linearizable: the API server asks etcd, not its cache). A commit is a PUT of the whole
object with the ``resourceVersion`` and ``uid`` that were read, or a POST if there was no object. The API server refuses both
after another write, so several operators may decide at once and one of them wins. The PUT sends everything else in the object
(finalizers, labels, members of a newer schema) back as read.

A write without an answer is looked up: ``_until_known`` says how. At the deadline the caller gets an error and may grant nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, cast

from brokergroup_operator.api import names
from brokergroup_operator.api.credentials import CredentialsError, secret_not_readable
from brokergroup_operator.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    Backoff,
    ConflictError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    is_forbidden,
)
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, MAY_LACK, SECRETS
from brokergroup_operator.records.serialize import KNOWN_MEMBERS, record_from_json, record_to_json
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordConflictError,
    RecordCorruptError,
    RecordRefusedError,
    RecordUnavailableError,
    StoredRecord,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.records.store import RecordMoved
    from controller_core.model import BrokerGroupRecord


WRITE_ANNOTATION = names.ANNOTATION_LAST_WRITE
FIELD_MANAGER = names.FIELD_MANAGER_CONTROLLER
# One try gets at most this share of the deadline, so that a hanging API server leaves time to ask again.
SHARE_OF_ONE_TRY = 0.5
# The pauses between tries within one deadline: the first is short, for a connection that was lost costs nothing to open again.
PAUSE_BETWEEN_TRIES_SECONDS = 0.02
LONGEST_PAUSE_BETWEEN_TRIES_SECONDS = 0.5
# Whatever the server's Retry-After, this much of the deadline is kept for one last try.
LAST_TRY_SECONDS = 0.3


class KubernetesRecordStore:
    """Records as BrokerGroupState objects, in one namespace or (None) all. The API client belongs to the caller."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None) -> None:
        self._api = api
        self._reflector = Reflector(api, BROKER_GROUP_STATES, namespace=namespace, on_change=self._on_change)
        self._callbacks: list[RecordMoved] = []
        self._watch: asyncio.Task[None] | None = None

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        """Return the newest record, asking again while the API is away and time is left."""
        deadline = _Deadline(deadline_seconds, what=f"reading the record of {key}")
        while True:
            try:
                obj = await self._get(key, deadline.next_try_seconds())
            except ApiError as error:
                await deadline.pause(error)
            else:
                return stored_record(obj) if obj is not None else None

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        """Create or replace the object, and know the outcome when this returns."""
        deadline = _Deadline(deadline_seconds, what=f"writing the record of {key}")
        if record is None:
            await self._delete(key, expected, deadline)
            return None
        write_id = str(uuid.uuid4())
        obj = _object_to_write(key, record, expected, write_id)
        write = self._create if expected is None else self._replace
        try:
            return await self._until_known(key, expected, write_id, deadline, lambda limit: write(obj, limit))
        except RecordUnavailableError as error:
            raise RecordUnavailableError(
                str(error), write_id=write_id, retry_after_seconds=error.retry_after_seconds
            ) from error

    def subscribe(self, callback: RecordMoved) -> Callable[[], None]:
        """Call ``callback`` for each change that the watch sees. The watch runs while there is a subscriber."""
        self._callbacks.append(callback)
        if self._watch is None:
            self._watch = asyncio.create_task(self._reflector.run(), name="rmq:records")
        return lambda: self._unsubscribe(callback)

    def watched(self, key: GroupKey) -> StoredRecord | None:
        """Return the record that the watch last saw. Raises ``RecordCorruptError``."""
        obj = self._reflector.objects.get((key.namespace, key.name))
        return stored_record(obj) if obj is not None else None

    async def close(self) -> None:
        """End the watch."""
        self._callbacks.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _unsubscribe(self, callback: RecordMoved) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)
        if not self._callbacks and self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_change(self, event: WatchEvent) -> None:
        metadata = event.object["metadata"]
        version = None if event.type == "DELETED" else str(metadata["resourceVersion"])
        for callback in list(self._callbacks):
            callback(GroupKey(metadata["namespace"], metadata["name"]), version)

    async def _until_known(
        self,
        key: GroupKey,
        expected: StoredRecord | None,
        write_id: str,
        deadline: _Deadline,
        write: Callable[[float], Awaitable[JsonObject]],
    ) -> StoredRecord:
        asked_before = False
        while True:
            try:
                return stored_record(await write(deadline.next_try_seconds()))
            except (ConflictError, AlreadyExistsError, NotFoundError) as error:
                if not asked_before:
                    raise RecordConflictError(f"record of {key}: {error}") from error
                # One of our own earlier tries may have caused the conflict: read the object.
            except InvalidError as error:
                raise RecordRefusedError(f"record of {key}: {error} {list(error.field_messages)}") from error
            except OutcomeUnknownError as error:
                asked_before = True
                await deadline.pause(error)
            except ApiError as error:
                await deadline.pause(error)
                if not asked_before:
                    continue
            found = await self._look(key, deadline)
            if found is not None and _write_id_of(found) == write_id:
                return stored_record(found)
            if _identity(found) != ((expected.version, expected.uid) if expected is not None else None):
                raise RecordConflictError(f"record of {key}: overwritten while the outcome of our write was unknown")

    async def _look(self, key: GroupKey, deadline: _Deadline) -> JsonObject | None:
        while True:
            try:
                return await self._get(key, deadline.next_try_seconds())
            except ApiError as error:
                await deadline.pause(error)

    async def _get(self, key: GroupKey, limit_seconds: float) -> JsonObject | None:
        try:
            return await self._api.get(
                BROKER_GROUP_STATES, key.name, namespace=key.namespace, timeout_seconds=limit_seconds
            )
        except NotFoundError:
            return None

    async def _create(self, obj: JsonObject, limit_seconds: float) -> JsonObject:
        try:
            return await self._api.create(
                BROKER_GROUP_STATES, obj, field_manager=FIELD_MANAGER, timeout_seconds=limit_seconds
            )
        except NotFoundError as error:  # no such namespace, or the kind is not installed yet: no conflict of writes
            raise ApiUnavailableError(str(error)) from error

    async def _replace(self, obj: JsonObject, limit_seconds: float) -> JsonObject:
        return await self._api.replace(
            BROKER_GROUP_STATES, obj, field_manager=FIELD_MANAGER, timeout_seconds=limit_seconds
        )

    async def _delete(self, key: GroupKey, expected: StoredRecord | None, deadline: _Deadline) -> None:
        while expected is not None:
            try:
                await self._api.delete(
                    BROKER_GROUP_STATES,
                    key.name,
                    namespace=key.namespace,
                    uid=expected.uid,
                    resource_version=expected.version,
                    timeout_seconds=deadline.next_try_seconds(),
                )
            except NotFoundError:
                return
            except ConflictError as error:
                raise RecordConflictError(f"record of {key}: {error}") from error
            except ApiError as error:
                await deadline.pause(error)
            else:
                return


class _Deadline:
    """The time left for one call, and for one try in it. Raises ``RecordUnavailableError`` if none is left."""

    def __init__(self, seconds: float, *, what: str) -> None:
        self._clock = asyncio.get_running_loop().time
        self._total_seconds = seconds
        self._end_seconds = self._clock() + seconds
        self._what = what
        self._last_error: ApiError | None = None
        self._backoff = Backoff(PAUSE_BETWEEN_TRIES_SECONDS, LONGEST_PAUSE_BETWEEN_TRIES_SECONDS)
        # The end of the server's Retry-After.
        self._not_before_seconds = 0.0

    def next_try_seconds(self) -> float:
        left_seconds = self._end_seconds - self._clock()
        if left_seconds <= 0:
            raise self._given_up() from self._last_error
        return min(left_seconds, self._total_seconds * SHARE_OF_ONE_TRY)

    async def pause(self, error: ApiError) -> None:
        self._last_error = error
        self._not_before_seconds = self._clock() + error.retry_after_seconds
        self.next_try_seconds()
        left_seconds = self._end_seconds - self._clock()
        # A server's Retry-After (429, 503) is respected, with one last try within the deadline.
        wanted_seconds = min(error.retry_after_seconds, max(left_seconds - LAST_TRY_SECONDS, 0.0))
        if error.retry_after_seconds > 0 and left_seconds <= LAST_TRY_SECONDS + PAUSE_BETWEEN_TRIES_SECONDS:
            raise self._given_up() from error
        pause_seconds = self._backoff.next_seconds(wanted_seconds)
        await asyncio.sleep(min(pause_seconds, max(left_seconds, PAUSE_BETWEEN_TRIES_SECONDS)))

    def _given_up(self) -> RecordUnavailableError:
        last = f", last: {self._last_error}" if self._last_error is not None else ""
        return RecordUnavailableError(
            f"{self._what}: no answer within {self._total_seconds} s{last}",
            retry_after_seconds=max(self._not_before_seconds - self._clock(), 0.0),
        )


def stored_record(obj: JsonObject) -> StoredRecord:
    """Return the record in a BrokerGroupState, as this store or a watch reads it."""
    metadata = obj.get("metadata", {})
    source = f"BrokerGroupState {metadata.get('namespace')}/{metadata.get('name')}"
    version, uid = _identity(obj) or ("", "")
    if not version or not uid:
        raise RecordCorruptError(f"{source}: no resourceVersion or uid in its metadata")
    record = record_from_json(obj.get("record"), source=source)
    return StoredRecord(record=record, version=version, uid=uid, write_id=_write_id_of(obj), backing=obj)


def _write_id_of(obj: JsonObject) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(WRITE_ANNOTATION, ""))


def _object_to_write(
    key: GroupKey, record: BrokerGroupRecord, expected: StoredRecord | None, write_id: str
) -> JsonObject:
    if expected is None:
        obj: JsonObject = {
            "apiVersion": BROKER_GROUP_STATES.api_version,
            "kind": BROKER_GROUP_STATES.kind,
            "metadata": {"namespace": key.namespace, "name": key.name},
        }
        unknown_members: dict[str, Any] = {}
    else:
        backing = cast("JsonObject", expected.backing)
        metadata = {name: value for name, value in backing["metadata"].items() if name != "managedFields"}
        metadata |= {"resourceVersion": expected.version, "uid": expected.uid}
        obj = {**backing, "metadata": metadata}
        unknown_members = {name: value for name, value in obj["record"].items() if name not in KNOWN_MEMBERS}
    obj["metadata"]["annotations"] = {**(obj["metadata"].get("annotations") or {}), WRITE_ANNOTATION: write_id}
    obj["record"] = unknown_members | record_to_json(record)
    return obj


def _identity(obj: JsonObject | None) -> tuple[str, str] | None:
    if obj is None:
        return None
    metadata = obj.get("metadata", {})
    return (str(metadata.get("resourceVersion", "")), str(metadata.get("uid", "")))


class GroupObjects:
    """Reads through one client, with one deadline per request. Raises ``ApiError``."""

    def __init__(self, api: KubernetesApi, *, timeout_seconds: float | None = None) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds

    async def find(self, resource: Resource, key: GroupKey) -> JsonObject | None:
        """The object of this namespace and name, or None if there is none."""
        try:
            return await self._api.get(
                resource, key.name, namespace=key.namespace, timeout_seconds=self._timeout_seconds
            )
        except NotFoundError:
            return None

    async def labelled(
        self, resource: Resource, key: GroupKey, label: str = names.LABEL_BROKER_GROUP
    ) -> dict[str, JsonObject]:
        """The objects that carry the label of the group, or of the cluster, by their names.

        None of `MAY_LACK` without the right to them: a spec that asks for one is Stalled when it is applied.
        """
        try:
            listed = await self._api.list(
                resource,
                namespace=key.namespace,
                label_selector=f"{label}={key.name}",
                timeout_seconds=self._timeout_seconds,
            )
        except ApiError as error:
            if not is_forbidden(error) or resource not in MAY_LACK:
                raise
            return {}
        return {
            str(item["metadata"]["name"]): item
            for item in listed.items
            if (item["metadata"].get("labels") or {}).get(label) == key.name
        }

    async def secret(self, namespace: str, name: str) -> JsonObject | CredentialsError | None:
        """The Secret, or None if there is none; the error, if the role lacks the right to get it."""
        try:
            return await self.find(SECRETS, GroupKey(namespace, name))
        except ApiError as error:
            if not is_forbidden(error):
                raise
            return secret_not_readable(namespace, name)
