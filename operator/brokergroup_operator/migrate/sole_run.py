"""Lets one run of a command at a time change what belongs to one group, by a Lease that it keeps until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import TYPE_CHECKING, Final

from brokergroup_operator.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from brokergroup_operator.kube.resources import LEASES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube import KubernetesApi

# A run that was killed is forgotten after so long; one that goes on renews its Lease several times in it.
LEASE_SECONDS: Final = 12
RENEW_SECONDS: Final = 2.0
# A run ends so long after its last renewal that was answered: before another one may take the Lease.
LOST_SECONDS: Final = 8.0
REQUEST_SECONDS: Final = 3.0
POLL_SECONDS: Final = 0.25


class SoleRunError(Exception):
    """Another run goes on, or this one can't prove any more that it is alone."""


@contextlib.asynccontextmanager
async def sole_run(api: KubernetesApi, *, namespace: str, name: str, what: str) -> AsyncIterator[None]:
    """Hold the Lease `name` meanwhile, and delete it at the end. If it is lost, the body is cancelled.

    Raises SoleRunError, within seconds while another run renews it. `what` names the command and the group.
    """
    lease = await _take(api, namespace, name, what)
    body, lost = asyncio.current_task(), asyncio.Event()
    assert body is not None

    def lose() -> None:
        lost.set()
        body.cancel()

    renewing = asyncio.create_task(_renew(api, lease, lose), name=f"Lease {name}")
    try:
        yield
    except asyncio.CancelledError:
        if not lost.is_set():
            raise
        body.uncancel()
        raise SoleRunError(
            f"Lease {namespace}/{name} could not be renewed for {LOST_SECONDS:g} s: run it again, it goes on there"
        ) from None
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await _give_back(api, lease)


async def _take(api: KubernetesApi, namespace: str, name: str, what: str) -> JsonObject:
    """Create the Lease, or take one that no run has renewed for its whole time: the run that held it was killed."""
    clock = asyncio.get_running_loop().time
    holder = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    first, since_seconds = await _read(api, namespace, name), clock()
    lease = first
    another = SoleRunError(
        f"another run of {what} goes on (Lease {namespace}/{name}): wait until it has ended; one that was killed is forgotten"
        f" after {LEASE_SECONDS} s"
    )
    while lease is not None and clock() - since_seconds < LEASE_SECONDS:
        await asyncio.sleep(POLL_SECONDS)
        lease = await _read(api, namespace, name)
        if lease is not None and first is not None and _version(lease) != _version(first):
            raise another
    spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS}
    try:
        if lease is not None:
            return await api.replace(LEASES, lease | {"spec": spec}, timeout_seconds=REQUEST_SECONDS)
        metadata = {"name": name, "namespace": namespace}
        return await api.create(LEASES, {"metadata": metadata, "spec": spec}, timeout_seconds=REQUEST_SECONDS)
    except (AlreadyExistsError, ConflictError, NotFoundError):
        raise another from None


async def _renew(api: KubernetesApi, lease: JsonObject, lose: Callable[[], None]) -> None:
    """Write the Lease again and again, each time as it was read: a changed one is another run's, and this one has lost it."""
    clock = asyncio.get_running_loop().time
    renewed_seconds, number = clock(), 0
    while clock() - renewed_seconds < LOST_SECONDS:
        await asyncio.sleep(RENEW_SECONDS)
        began_seconds, number = clock(), number + 1
        spec = lease["spec"] | {"leaseTransitions": number}
        try:
            lease = await api.replace(LEASES, lease | {"spec": spec}, timeout_seconds=REQUEST_SECONDS)
        except (ConflictError, NotFoundError):
            # The answer to an earlier renewal may have been lost.
            found = await _found(api, lease)
            if found is None:
                break
            lease = found
        except ApiError:
            continue
        renewed_seconds = began_seconds
    lose()


async def _found(api: KubernetesApi, lease: JsonObject) -> JsonObject | None:
    """Return the Lease as it is now, None if it is not this run's any more."""
    metadata = lease["metadata"]
    now = await _read(api, metadata["namespace"], metadata["name"])
    is_ours = now is not None and now["spec"].get("holderIdentity") == lease["spec"]["holderIdentity"]
    return now if is_ours else None


async def _give_back(api: KubernetesApi, lease: JsonObject) -> None:
    """Delete the Lease if it is this run's; one that the API does not let go ends by itself."""
    metadata = lease["metadata"]
    with contextlib.suppress(ApiError):
        now = await _found(api, lease)
        if now is not None:
            await api.delete(
                LEASES, metadata["name"], namespace=metadata["namespace"],
                uid=metadata["uid"], resource_version=_version(now), timeout_seconds=REQUEST_SECONDS,
            )  # fmt: skip


async def _read(api: KubernetesApi, namespace: str, name: str) -> JsonObject | None:
    try:
        return await api.get(LEASES, name, namespace=namespace, timeout_seconds=REQUEST_SECONDS)
    except NotFoundError:
        return None


def _version(lease: JsonObject) -> str:
    return str(lease["metadata"]["resourceVersion"])
