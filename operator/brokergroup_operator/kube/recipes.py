"""Sequences of requests that both planes need: delete a pod so that its end can be observed, and keep a random key in a Secret."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Final

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import AlreadyExistsError, InvalidError, NotFoundError
from brokergroup_operator.kube.resources import PODS, SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi


async def delete_held(
    api: KubernetesApi, pod: JsonObject, *, finalizer: str, timeout_seconds: float | None = None
) -> JsonObject:
    """Delete this pod (by uid) without grace, and keep its object by a finalizer until its containers are reported terminated.

    A pod deleted without grace disappears from the API at once while its containers may still run, so its absence proves nothing.
    Return it with the finalizer: an API server may have forgotten the events after the version that was read, which may be old.
    Raises ConflictError if it has changed since it was read, NotFoundError if it is gone.
    """
    metadata = pod["metadata"]
    finalizers = metadata.get("finalizers", [])
    is_leaving = "deletionTimestamp" in metadata
    if finalizer not in finalizers and not is_leaving:
        held = {"resourceVersion": metadata["resourceVersion"], "finalizers": [*finalizers, finalizer]}
        pod = await api.patch(
            PODS,
            metadata["name"],
            {"metadata": held},
            namespace=metadata["namespace"],
            content_type=PatchType.MERGE,
            timeout_seconds=timeout_seconds,
        )
    # A pod that is already being deleted accepts no new finalizer. With one second of grace the kubelet removes the object, after
    # the containers have ended; without grace the API would remove it at once.
    await api.delete(
        PODS,
        metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        grace_period_seconds=0 if finalizer in finalizers or not is_leaving else 1,
        timeout_seconds=timeout_seconds,
    )
    return pod


ENTRY: Final = "key"
BYTES: Final = 32


async def kept_secret(
    api: KubernetesApi, name: str, *, namespace: str, labels: Mapping[str, str], timeout_seconds: float
) -> bytes:
    """Return the 32 random bytes of this Secret. The first caller creates it, the others read it.

    Raises InvalidError if it holds something else, ApiError if it can be neither read nor created.
    """
    try:
        return _value(await api.get(SECRETS, name, namespace=namespace, timeout_seconds=timeout_seconds))
    except NotFoundError:
        made = secret_object(name, secrets.token_bytes(BYTES), namespace=namespace, labels=labels)
    try:
        return _value(await api.create(SECRETS, made, namespace=namespace, timeout_seconds=timeout_seconds))
    except AlreadyExistsError:
        return _value(await api.get(SECRETS, name, namespace=namespace, timeout_seconds=timeout_seconds))


def secret_object(name: str, value: bytes, *, namespace: str, labels: Mapping[str, str]) -> JsonObject:
    """Return an immutable Secret with one entry, in hexadecimal so that its file is text."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {ENTRY: base64.b64encode(value.hex().encode()).decode()},
    }


def _value(found: JsonObject) -> bytes:
    try:
        value = bytes.fromhex(base64.b64decode((found.get("data") or {}).get(ENTRY, ""), validate=True).decode("ascii"))
    except (ValueError, binascii.Error):
        value = b""
    if len(value) != BYTES:
        metadata = found["metadata"]
        what = f"Secret {metadata['namespace']}/{metadata['name']}"
        raise InvalidError(f"{what}: {ENTRY!r} is not {BYTES} bytes in hexadecimal. Delete it: it is made anew")
    return value
