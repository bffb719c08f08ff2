"""How each of our three clients reaches the API server: one description, three ways to log in.

kopf watches, the official `kubernetes.aio` client applies, and our own small client does everything that must be quick or
exact. All three must speak to the same server, so none of them reads a kubeconfig of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import kopf
import kubernetes.aio.client
import kubernetes.aio.config

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.settings import settings_from_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """A kubeconfig file, or the plain URL of a server without authentication (the sandbox), or neither: inside a pod."""

    kubeconfig: Path | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        if self.kubeconfig is not None and self.url is not None:
            raise ValueError("kubeconfig and url are both given, expected at most one")

    def own_client(self) -> KubernetesApi:
        if self.kubeconfig is not None:
            return KubernetesApi.from_kubeconfig(self.kubeconfig)
        if self.url is not None:
            return KubernetesApi.from_url(self.url)
        return KubernetesApi.in_cluster()

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

    def kopf_credentials(self, settings: kopf.OperatorSettings) -> kopf.ConnectionInfo | kopf.AiohttpSession | None:
        """What kopf's login handler returns. Kopf closes the session that it is given."""
        if self.kubeconfig is not None:
            connection = settings_from_kubeconfig(self.kubeconfig)
            authorization = connection.authorization()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=connection.tls or True),
                headers={"Authorization": authorization} if authorization else {},
            )
            return kopf.AiohttpSession(server=connection.url, aiohttp_session=session)
        if self.url is not None:
            return kopf.ConnectionInfo(server=self.url)
        return kopf.login_with_service_account(settings=settings)
