"""How the plane is reached and reaches others: TLS, signatures, administrators, limits for unknown callers.

The defaults are those of an operator in a cluster: a broker is known by its pod's address, no caller is an administrator until one
is named, the configuration is not readable. `brokergroup controller` opens some of it (docs/concepts/security.md).
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameLimits
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import ClientTls, TlsFiles, TlsMode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from rocketmq_remoting.handler import RemotingHandler
    from rocketmq_remoting.tls import TlsFiles, TlsServerSettings

UNTIL_KNOWN_BYTES = 64 * 1024
KNOWN_BYTES = 1024 * 1024
NEW_NAMES_PER_HOST = 64
CHECK_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What is demanded of callers, and how this plane's own connections are secured."""

    # TLS on the controller's own port; None: plain frames only.
    tls: TlsServerSettings | None = None
    # How we dial brokers, NameServers and the other planes; None: plainly. Our certificate is what they may ask of us.
    broker_tls: TlsFiles | None = None
    name_server_tls: TlsFiles | None = None

    # Designating a master (1002) and cleaning (1011) need one of these, or are open to every caller that reaches the port.
    admin_credentials: AdminCredentials | None = None
    admin_certificate_names: frozenset[str] = frozenset()
    open_admin: bool = False
    # Whether 1010 answers with the settings in effect. They hold no secret.
    configuration_readable: bool = False
    # Brokers that are no pods of the group (a machine beside the cluster) may take part without a signature or a certificate.
    brokers_without_pods: bool = False

    # The longest frame before and after the caller is known. The longest honest request is a 1006 with the names of thousands of
    # groups; with Java's 16 MiB for every caller 100 unknown ones could take 1.6 GiB.
    frame_limits: FrameLimits = field(
        default_factory=lambda: FrameLimits(max_frame_bytes=KNOWN_BYTES, max_frame_bytes_until_known=UNTIL_KNOWN_BYTES)
    )
    # The share of unknown callers in all connections; brokers' connections do not count towards it. All of them with a frame begun
    # and a TLS handshake done hold about 130 MiB. None: no such share, where no caller is known by its address.
    max_unknown_connections: int | None = 1024
    max_unknown_connections_per_host: int | None = 128
    # How many names without a registered broker an address may begin in an hour (`NewNames`). None: names are declared.
    max_new_names_per_host: int | None = None


class AdminCredentialsError(ValueError):
    """The file cannot be used; the message names it and what was expected, never what is in it."""


class AdminCredentials:
    """The access keys of administrators, from a file that is read again when it changes.

    The file is a folder with `accessKey` and `secretKey` (a mounted Secret), or JSON of one such pair or a list of them.
    mqadmin signs as one of them if its `conf/tools.yml` says so.
    """

    def __init__(self, credentials: Iterable[Credentials] = (), *, path: Path | None = None) -> None:
        self._path = path
        self._by_key = {one.access_key: one for one in (credentials if path is None else read_credentials(path))}
        self._seen = _state_of(path)
        self._checked_seconds = time.monotonic()

    def get(self, access_key: str) -> Credentials | None:
        """Return the administrator's credentials of this access key."""
        self._refresh()
        return self._by_key.get(access_key)

    def _refresh(self) -> None:
        now_seconds = time.monotonic()
        if self._path is None or now_seconds - self._checked_seconds < CHECK_SECONDS:
            return
        self._checked_seconds = now_seconds
        seen = _state_of(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._by_key = {one.access_key: one for one in read_credentials(self._path)}
        except AdminCredentialsError as error:
            logger.error("the old administrators stay in force: %s", error)  # noqa: TRY400 - the cause may quote the file


def read_credentials(path: Path) -> tuple[Credentials, ...]:
    """Return the credentials in the file; raise `AdminCredentialsError` if there are none."""
    try:
        if path.is_dir():
            pair = {name: (path / name).read_text(encoding="utf-8").strip() for name in ("accessKey", "secretKey")}
            return (_credentials(pair),)
        read = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_credentials(pair) for pair in (read if isinstance(read, list) else [read]))
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        # Not "from error": an error of the JSON reader quotes what it read.
        raise AdminCredentialsError(
            f"{path}: expected a folder with the files accessKey and secretKey, or JSON of such pairs"
            f" ({type(error).__name__})"
        ) from None


def _credentials(pair: dict[str, str]) -> Credentials:
    return Credentials(access_key=pair["accessKey"], secret_key=pair["secretKey"])


def _state_of(path: Path | None) -> tuple[tuple[int, int, int], ...] | None:
    if path is None:
        return None
    try:
        paths = [path / "accessKey", path / "secretKey"] if path.is_dir() else [path]
        states = [one.stat() for one in paths]
    except OSError:
        return None
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


def open_server(handler: RemotingHandler, security: SecuritySettings) -> RemotingServer:
    """Return the plane's server, not listening yet. Raise `TlsConfigurationError` if its TLS files cannot be used."""
    return RemotingServer(
        handler,
        limits=security.frame_limits,
        max_unknown_connections=security.max_unknown_connections,
        max_unknown_connections_per_host=security.max_unknown_connections_per_host,
        tls=security.tls,
    )


def open_client(
    security: SecuritySettings, planes: Collection[str], is_name_server: Callable[[str], bool]
) -> RemotingClient:
    """Return the plane's client. Raise `TlsConfigurationError` if its TLS files cannot be used.

    TLS is chosen by address: brokers may enforce it while NameServers have none; the other planes speak what this one demands.
    """
    served = security.tls
    enforced = served is not None and served.mode is TlsMode.ENFORCING
    to_planes = _client_tls(served.files if served is not None and enforced else None)
    to_brokers, to_name_servers = _client_tls(security.broker_tls), _client_tls(security.name_server_tls)

    def tls_for(address: str) -> ClientTls | None:
        if address in planes:
            return to_planes
        if to_brokers is not to_name_servers and is_name_server(address):
            return to_name_servers
        return to_brokers

    return RemotingClient(tls=tls_for)


def _client_tls(files: TlsFiles | None) -> ClientTls | None:
    return ClientTls(files) if files is not None else None
