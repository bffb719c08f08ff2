"""Server-side apply of child objects through the official client (`kubernetes.aio`), under our deadlines and error types.

It owns exactly the fields it sends, prunes those it no longer sends, and leaves other managers' fields alone. A request is sent
once: a PATCH is none of the methods that aiohttp repeats on a connection that died, and the client's own retries are off.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.resource import Resource as DynamicResource

from brokergroup_operator.kube.answers import decode, kubernetes_object, transport_error
from brokergroup_operator.kube.errors import NotLeadingError, OutcomeUnknownError, error_from_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubernetes.aio.client import ApiClient

    from brokergroup_operator.kube.client import JsonObject
    from brokergroup_operator.kube.resources import Resource


class ServerSideApplier:
    """Applies objects; `close` it when done. `new_client` is called at the first request."""

    def __init__(
        self,
        new_client: Callable[[], Awaitable[ApiClient]],
        *,
        field_manager: str,
        timeout_seconds: float,
        may_write_seconds: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._new_client = new_client
        self._field_manager = field_manager
        self._timeout_seconds = timeout_seconds
        self._may_write_seconds = may_write_seconds
        self._in_flight: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._client: DynamicClient | None = None

    async def apply(self, resource: Resource, obj: JsonObject, *, force: bool = True) -> None:
        """Apply the object; by force it takes over fields that another manager holds. Raises `ApiError`.

        A caller that is cancelled does not cut a request off: its outcome would be unknown when the Lease is given back.
        """
        call = asyncio.create_task(self._apply(resource, obj, force=force), name="server-side apply")
        self._in_flight.add(call)
        call.add_done_callback(self._ended)
        await asyncio.shield(call)

    async def settle(self) -> None:
        """Wait until every request has its answer, or none will come."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight), timeout=self._timeout_seconds + 1)

    async def close(self) -> None:
        """Close all connections."""
        await self.settle()
        if self._client is not None:
            await self._client.client.close()

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._in_flight.discard(call)
        if not call.cancelled():
            call.exception()  # the caller has it, unless it was cancelled

    async def _apply(self, resource: Resource, obj: JsonObject, *, force: bool) -> None:
        what = f"apply {resource.kind} {obj['metadata'].get('namespace')}/{obj['metadata']['name']}"
        client = await self._opened()
        timeout_seconds = min(self._timeout_seconds, self._may_write_seconds())
        if timeout_seconds <= 0:
            raise NotLeadingError(f"{what}: not sent, this process does not lead")
        try:
            await client.server_side_apply(  # type: ignore[no-untyped-call]
                _dynamic_resource(client, resource),
                body=obj,
                field_manager=self._field_manager,
                force_conflicts="true" if force else None,
                serializer=lambda _client, answer: _checked(answer, what),
                _request_timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            )
        except ApiException as error:
            raise error_from_status(what, int(error.status or 500), _status_object(error.body), write=True) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise transport_error(what, error, write=True) from error
        except ValueError as error:
            raise OutcomeUnknownError(f"{what}: the answer is no JSON: {error}") from error

    async def _opened(self) -> DynamicClient:
        async with self._opening:
            if self._client is None:
                client = await self._new_client()
                self._client = await DynamicClient(client, discoverer=_no_discovery)  # type: ignore[no-untyped-call]
            return self._client


async def _no_discovery(client: DynamicClient, cache_file: str | None) -> None:
    """Our kinds are fixed. Discovery would ask the server at each start and keep a file that outlives the server."""
    del client, cache_file


def _checked(answer: object, what: str) -> None:
    """Raise OutcomeUnknownError if a proxy's JSON is in the object's place."""
    kubernetes_object(answer if isinstance(answer, dict) else {}, what, write=True)


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
    return decode(body if isinstance(body, bytes) else str(body).encode())
