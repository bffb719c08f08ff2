"""The controller plane's socket ends: its server, and its client for brokers, NameServers and the other planes.

What each peer is spoken to with differs: brokers may enforce TLS while NameServers have none, and the other planes speak what
we ourselves demand. So the client asks here, for each address it connects to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.tls import ClientTls, TlsFiles, TlsMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.settings import PlaneSettings
    from rocketmq_remoting.handler import RemotingHandler


def open_server(handler: RemotingHandler, settings: PlaneSettings) -> RemotingServer:
    """Not listening yet. ``TlsConfigurationError`` when its TLS files cannot be used."""
    security = settings.security
    return RemotingServer(
        handler,
        limits=security.frame_limits,
        max_unknown_connections=security.max_unknown_connections,
        max_unknown_connections_per_host=security.max_unknown_connections_per_host,
        tls=security.tls,
    )


def open_client(settings: PlaneSettings, is_name_server: Callable[[str], bool]) -> RemotingClient:
    """The plane's client; `is_name_server` says it of an address. ``TlsConfigurationError`` when its TLS files cannot be used."""
    return RemotingClient(tls=_Chooser(settings, is_name_server))


class _Chooser:
    """Which TLS, if any, an address is spoken to with."""

    def __init__(self, settings: PlaneSettings, is_name_server: Callable[[str], bool]) -> None:
        security = settings.security
        self._is_name_server = is_name_server
        self._planes = frozenset(settings.peer_addresses)
        self._to_brokers = _client_tls(security.broker_tls)
        self._to_name_servers = _client_tls(security.name_server_tls)
        served = security.tls
        enforced = served is not None and served.mode is TlsMode.ENFORCING
        self._to_planes = _client_tls(served.files if served is not None and enforced else None)

    def __call__(self, address: str) -> ClientTls | None:
        if address in self._planes:
            return self._to_planes
        if self._to_brokers is not self._to_name_servers and self._is_name_server(address):
            return self._to_name_servers
        return self._to_brokers


def _client_tls(files: TlsFiles | None) -> ClientTls | None:
    return ClientTls(files) if files is not None else None
