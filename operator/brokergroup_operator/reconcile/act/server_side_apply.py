"""Server-side apply of child objects through the official client's DynamicClient, in threads of its own.

It owns exactly the fields it sends, prunes those it no longer sends, and leaves other managers' fields alone; neither kopf
nor pykube can do that. The client is synchronous, so each call runs in a small pool under a deadline;
its answers come back as our own errors, whose types say what to do.

A thread can't be cancelled: a plane that gives up its Lease waits with `settle` until nothing is in flight.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import msgspec
import urllib3
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from kubernetes.dynamic.resource import Resource as DynamicResource

from brokergroup_operator.kube.errors import NotLeadingError, OutcomeUnknownError, error_from_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess

THREADS = 4


class _NoDiscovery:
    """Our kinds are fixed. Discovery would ask the server at each start and keep a file that outlives the server."""

    def __init__(self, client: DynamicClient, cache_file: str | None) -> None:
        del client, cache_file


class ServerSideApplier:
    """Applies objects; `close` it when done."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        field_manager: str,
        timeout_seconds: float,
        may_write_seconds: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._access = access
        self._field_manager = field_manager
        self._timeout_seconds = timeout_seconds
        self._may_write_seconds = may_write_seconds
        self._in_flight: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="server-side-apply")
        self._client: DynamicClient | None = None

    async def apply(self, resource: Resource, obj: JsonObject, *, force: bool = True) -> None:
        """Apply the object; by force it takes over fields that another manager holds. Raises `ApiError`."""
        call = self._threads.submit(self._apply, resource, obj, force)
        self._in_flight.add(call)
        call.add_done_callback(self._in_flight.discard)
        try:
            # The thread's own deadline is shorter; this one holds even if the thread does not come back.
            await asyncio.wait_for(asyncio.wrap_future(call), self._timeout_seconds + 1)
        except TimeoutError as error:
            raise OutcomeUnknownError(f"apply {_described(resource, obj)}: no answer in time") from error

    async def settle(self) -> None:
        """Wait until every request has its answer, or none will come."""
        await asyncio.to_thread(wait, set(self._in_flight), self._timeout_seconds + 1)

    def _apply(self, resource: Resource, obj: JsonObject, force: bool) -> None:
        what = f"apply {_described(resource, obj)}"
        timeout_seconds = min(self._timeout_seconds, self._may_write_seconds())
        if timeout_seconds <= 0:
            raise NotLeadingError(f"{what}: not sent, this process does not lead")
        try:
            if self._client is None:
                self._client = DynamicClient(  # type: ignore[no-untyped-call]
                    self._access.official_client(), discoverer=_NoDiscovery
                )
            self._client.server_side_apply(  # type: ignore[no-untyped-call]
                _dynamic_resource(self._client, resource),
                body=obj,
                field_manager=self._field_manager,
                force_conflicts=force,
                _request_timeout=timeout_seconds,
            )
        except (DynamicApiError, ApiException) as error:
            raise error_from_status(what, int(error.status or 500), _status_object(error.body), write=True) from error
        except urllib3.exceptions.HTTPError as error:
            raise OutcomeUnknownError(f"{what}: {error}") from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.client.close()


def _described(resource: Resource, obj: JsonObject) -> str:
    return f"{resource.kind} {obj['metadata'].get('namespace')}/{obj['metadata']['name']}"


def _dynamic_resource(client: DynamicClient, resource: Resource) -> DynamicResource:
    return DynamicResource(  # type: ignore[no-untyped-call]
        prefix="apis" if resource.group else "api",
        group=resource.group,
        api_version=resource.version,
        kind=resource.kind,
        namespaced=resource.namespaced,
        verbs=["patch"],
        name=resource.plural,
        client=client,
    )


def _status_object(body: Any) -> dict[str, Any]:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"message": text[:500]}
