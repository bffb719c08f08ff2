"""How this replica dials others and is dialled: from which address, with TLS or plainly, signed or not.

One switch for all that it dials, as in a Java broker's process: ``tls.enable``. The HA port knows neither TLS nor signatures, in
Java as here. A signature goes with everything that controllers and masters are asked; NameServers
have nobody to check one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.signature import sign_command
from rocketmq_remoting.tls import (
    ClientCertificates,
    ClientTls,
    ServerTls,
    TlsConfigurationError,
    TlsFiles,
    TlsMode,
    TlsServerSettings,
)
from rocketmq_replica.configuration.property_values import ConfigurationError

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.signature import Credentials
    from rocketmq_replica.configuration.replica import ReplicaConfiguration
    from rocketmq_replica.configuration.security_configuration import SecurityConfiguration

_CONNECT_TIMEOUT_SECONDS = 1.0


def new_client(configuration: ReplicaConfiguration) -> RemotingClient:
    """A client whose connections come from the pod's own address, so that the operator recognises the pod."""
    return RemotingClient(
        local_host=configuration.own_ip,
        connect_timeout_seconds=_CONNECT_TIMEOUT_SECONDS,
        tls=client_tls(configuration),
    )


def client_tls(configuration: SecurityConfiguration) -> ClientTls | None:
    """TLS towards others; None: plain frames. ConfigurationError when the files cannot be used."""
    if not configuration.tls_enable:
        return None
    try:
        return ClientTls(
            TlsFiles(
                certificate=configuration.tls_client_certificate,
                key=configuration.tls_client_key,
                ca=configuration.tls_client_trust,
            )
        )
    except TlsConfigurationError as error:
        raise ConfigurationError(f"tls.client.certPath, keyPath, trustCertPath: {error}") from error


def server_tls(configuration: SecurityConfiguration) -> TlsServerSettings | None:
    """TLS on the broker port; None: plain frames. ConfigurationError when keys or files do not fit together."""
    mode = configuration.tls_server_mode
    if mode is None:
        mode = TlsMode.DISABLED if configuration.tls_server_certificate is None else TlsMode.PERMISSIVE
    if mode is TlsMode.DISABLED:
        if configuration.tls_server_client_certificates is not ClientCertificates.NONE:
            raise ConfigurationError("tls.server.need.client.auth: expected tls.server.certPath and keyPath beside it")
        return None
    try:
        settings = TlsServerSettings(
            mode=mode,
            files=TlsFiles(
                certificate=configuration.tls_server_certificate,
                key=configuration.tls_server_key,
                ca=configuration.tls_server_trust,
            ),
            client_certificates=configuration.tls_server_client_certificates,
        )
        ServerTls(settings)  # files that cannot be used are told now, not when the listener starts
    except TlsConfigurationError as error:
        raise ConfigurationError(f"tls.server.mode, certPath, keyPath, trustCertPath: {error}") from error
    return settings


def signed(command: RemotingCommand, credentials: Credentials | None) -> RemotingCommand:
    """The command as it goes out: signed where there is a key."""
    return command if credentials is None else sign_command(command, credentials)


class SharedConnections:
    """What the replicas of one process share: one connection to each controller address.

    Not where they differ in the address they speak from or in their TLS, by which a controller knows them. Each signs with
    its own key all the same.
    """

    def __init__(self) -> None:
        """None yet."""
        self._clients: dict[tuple[object, ...], RemotingClient] = {}

    def client(self, configuration: ReplicaConfiguration) -> RemotingClient:
        """The client for this replica, made if nobody has one like it. ConfigurationError as ``client_tls``."""
        likeness = (
            configuration.own_ip,
            configuration.tls_enable,
            configuration.tls_client_certificate,
            configuration.tls_client_key,
            configuration.tls_client_trust,
        )
        if likeness not in self._clients:
            self._clients[likeness] = new_client(configuration)
        return self._clients[likeness]

    async def close(self) -> None:
        """Close all of them."""
        for client in self._clients.values():
            await client.close()
