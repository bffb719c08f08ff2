"""How each of our three clients reaches the API server: one description, three ways to log in.

kopf watches, the official `kubernetes.aio` client applies, and our own small client does everything that must be quick or
exact. All three must speak to the same server, so none of them reads a kubeconfig of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp
import kopf
import kubernetes.aio.client
import kubernetes.aio.config

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.settings import settings_from_kubeconfig, settings_from_url, settings_in_cluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.kube.settings import ConnectionSettings


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """A kubeconfig file, or the plain URL of a server without authentication (the sandbox), or neither: inside a pod."""

    kubeconfig: Path | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        if self.kubeconfig is not None and self.url is not None:
            raise ValueError("kubeconfig and url are both given, expected at most one")

    def own_client(self) -> KubernetesApi:
        return KubernetesApi(self._connection())

    async def official_client(self) -> kubernetes.aio.client.ApiClient:
        """A client that the caller closes."""
        if self.kubeconfig is not None:
            client: kubernetes.aio.client.ApiClient = await kubernetes.aio.config.new_client_from_config(  # type: ignore[no-untyped-call]
                config_file=str(self.kubeconfig), persist_config=False
            )
            return client
        configuration = kubernetes.aio.client.Configuration()
        if self.url is not None:
            configuration.host = self.url
        else:
            kubernetes.aio.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return kubernetes.aio.client.ApiClient(configuration)

    def kopf_credentials(self, on_list: Callable[[str], None]) -> kopf.AiohttpSession:
        """What kopf's login handler returns. Kopf closes the session that it is given.

        ``on_list`` is called with a kind's plural when the API server has answered kopf's list of it.
        """
        connection = self._connection()
        authorization = connection.authorization()
        session = aiohttp.ClientSession(
            connector=connection.connector(),
            headers={"Authorization": authorization} if authorization else {},
            trace_configs=[_lists_traced(on_list)],
        )
        return kopf.AiohttpSession(server=connection.url, aiohttp_session=session)

    def _connection(self) -> ConnectionSettings:
        if self.kubeconfig is not None:
            return settings_from_kubeconfig(self.kubeconfig)
        return settings_in_cluster() if self.url is None else settings_from_url(self.url)


def _lists_traced(on_list: Callable[[str], None]) -> aiohttp.TraceConfig:
    async def answered(
        _session: aiohttp.ClientSession, _context: object, request: aiohttp.TraceRequestEndParams
    ) -> None:
        # Later pages of a list show the moment of its first.
        is_list = request.method == "GET" and not {"watch", "continue"} & request.url.query.keys()
        if is_list and request.response.status == HTTPStatus.OK:
            on_list(request.url.name)

    traced = aiohttp.TraceConfig()
    traced.on_request_end.append(answered)
    return traced
