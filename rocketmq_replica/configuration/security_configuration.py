"""How one listener and what it dials are secured: the keys of Java's ACL and ``tls.properties`` (``docs/concepts/security.md``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import ClientCertificates, TlsMode
from rocketmq_replica.configuration.property_values import ConfigurationError, boolean, path, prop, read_as

if TYPE_CHECKING:
    from pathlib import Path


def _tls_mode(value: str) -> TlsMode:
    try:
        return TlsMode(value.lower())
    except ValueError:
        raise ValueError("expected disabled, permissive or enforcing") from None


def _client_certificates(value: str) -> ClientCertificates:
    """Java's words."""
    words = {"none": ClientCertificates.NONE, "optional": ClientCertificates.OPTIONAL}
    found = (words | {"require": ClientCertificates.REQUIRED}).get(value.lower())
    if found is None:
        raise ValueError("expected none, optional or require")
    return found


class _Pair(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


def _credentials(value: str) -> Credentials:
    """What is wrong with it is told without it."""
    try:
        pair = msgspec.json.decode(value, type=_Pair)
        return Credentials(access_key=pair.access_key, secret_key=pair.secret_key)
    except (msgspec.DecodeError, ValueError):
        raise ValueError('expected {"accessKey":"…","secretKey":"…"} with two texts that are not empty') from None


@dataclass(frozen=True, kw_only=True)
class SecurityConfiguration:
    """Nothing of it set: plain frames, no signatures, everybody is heard."""

    credentials: Credentials | None = field(
        default=None, metadata=read_as("innerClientAuthenticationCredentials", _credentials, secret=True)
    )
    authentication_enabled: bool | None = prop("authenticationEnabled", boolean, default=None)
    tls_enable: bool = prop("tls.enable", boolean, default=False)
    tls_client_certificate: Path | None = field(default=None, metadata=read_as("tls.client.certPath", path))
    tls_client_key: Path | None = field(default=None, metadata=read_as("tls.client.keyPath", path))
    tls_client_trust: Path | None = field(default=None, metadata=read_as("tls.client.trustCertPath", path))
    tls_server_mode: TlsMode | None = field(default=None, metadata=read_as("tls.server.mode", _tls_mode))
    tls_server_certificate: Path | None = field(default=None, metadata=read_as("tls.server.certPath", path))
    tls_server_key: Path | None = field(default=None, metadata=read_as("tls.server.keyPath", path))
    tls_server_trust: Path | None = field(default=None, metadata=read_as("tls.server.trustCertPath", path))
    tls_server_client_certificates: ClientCertificates = field(
        default=ClientCertificates.NONE, metadata=read_as("tls.server.need.client.auth", _client_certificates)
    )

    @property
    def operators_sign(self) -> bool:
        """Whether operators' requests are heard only with our key's signature: where there is a key, unless it is turned off."""
        return self.credentials is not None and self.authentication_enabled is not False

    def __post_init__(self) -> None:
        """ConfigurationError when it asks for a check that there is nothing to check with."""
        if self.authentication_enabled and self.credentials is None:
            raise ConfigurationError(
                "authenticationEnabled=true: expected innerClientAuthenticationCredentials, the only key that is known here"
            )
