"""TLS as in RocketMQ: on the same port as plain frames, distinguished by the first byte.

A connection that begins with 0x16 begins with a TLS ClientHello: a frame with that first byte would exceed 16 MiB. Clients send
no server name and check none.

The certificate files may be renewed (cert-manager, a mounted Secret). New connections use the new files, old connections continue;
files that do not load leave the old ones in use and log an error. The minimum is TLS 1.2, without renegotiation. Sessions are only
resumed in TLS 1.2, which Python cannot turn off, and none from before a change of files.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


logger = logging.getLogger(__name__)

CLIENT_HELLO: Final = 0x16


class TlsMode(Enum):
    """Java's ``tls.server.mode``."""

    DISABLED = "disabled"
    """Frames only; a ClientHello closes the connection."""
    PERMISSIVE = "permissive"
    """Both."""
    ENFORCING = "enforcing"
    """TLS only; a frame closes the connection."""


class ClientCertificates(Enum):
    """Java's ``tls.server.need.client.auth`` (there ``require``). A certificate that is given is always checked."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class TlsConfigurationError(ValueError):
    """The TLS settings or the files they name cannot be used; the message names the setting and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: our certificate with its chain, its key without a password, and the trusted certificate authorities."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise TlsConfigurationError("certificate and key: expected both files or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsServerSettings:
    """What a server requires of its peers."""

    mode: TlsMode
    files: TlsFiles
    client_certificates: ClientCertificates = ClientCertificates.NONE
    handshake_timeout_seconds: float = 10.0
    """From the first byte of the hello (if TLS is enforced: from the connection) to the end of the handshake."""
    max_handshakes: int = 512
    """Unfinished handshakes at the same time; one more connection is closed."""
    check_files_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.mode is not TlsMode.DISABLED and self.files.certificate is None:
            raise TlsConfigurationError(f"mode is {self.mode.value}: expected a certificate file and a key file")
        if self.client_certificates is not ClientCertificates.NONE and self.files.ca is None:
            raise TlsConfigurationError(
                f"client_certificates is {self.client_certificates.value}: expected a ca file to check them against"
            )


class ReloadedContext:
    """An ``SSLContext`` that is reloaded when its files change."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], *, check_seconds: float) -> None:
        self._files = files
        self._make = make
        self._check_seconds = check_seconds
        self._seen = self._look()
        self._context = self._load()
        self._checked_seconds: float | None = None
        self.problem: str | None = None
        """Why the present files are not in use; None if they are."""

    def get(self, now_seconds: float) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._checked_seconds is None or now_seconds - self._checked_seconds >= self._check_seconds:
            self._checked_seconds = now_seconds
            self.refresh()
        return self._context

    def refresh(self) -> None:
        """Reload the files if they changed. Broken files are retried at each call and logged once per change."""
        seen = self._look()
        if seen == self._seen and self.problem is None:
            return
        changed, self._seen = seen != self._seen, seen
        try:
            self._context = self._load()
        except TlsConfigurationError as error:
            if changed or self.problem is None:
                logger.error("the new TLS files cannot be used, the old ones stay in force: %s", error)  # noqa: TRY400
            self.problem = str(error)
            return
        self.problem = None
        logger.info("TLS files changed: new connections use them (%s)", self._files.certificate or self._files.ca)

    def _load(self) -> ssl.SSLContext:
        try:
            return self._make(self._files)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            names = ", ".join(str(path) for path in self._paths())
            raise TlsConfigurationError(f"{names}: expected PEM files that belong together: {error}") from error

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state_of(path) for path in self._paths())

    def _paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self._files.certificate, self._files.key, self._files.ca) if path is not None)


class ServerTls:
    """A server's TLS at run time: the context in use and the number of handshakes under way."""

    def __init__(self, settings: TlsServerSettings) -> None:
        self.settings = settings
        self.handshakes = 0
        self.context = ReloadedContext(
            settings.files,
            lambda files: server_context(files, settings.client_certificates),
            check_seconds=settings.check_files_seconds,
        )


class ClientTls:
    """A client's TLS: verifies servers by the certificate authority it was given; without one (Java's default) it accepts all."""

    def __init__(self, files: TlsFiles, *, check_files_seconds: float = 5.0) -> None:
        self.context = ReloadedContext(files, client_context, check_seconds=check_files_seconds)


def server_context(files: TlsFiles, client_certificates: ClientCertificates) -> ssl.SSLContext:
    """OSError (of which ssl.SSLError is one) when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0
    context.verify_mode = {
        ClientCertificates.NONE: ssl.CERT_NONE,
        ClientCertificates.OPTIONAL: ssl.CERT_OPTIONAL,
        ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
    }[client_certificates]
    _load_files(context, files)
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """OSError (of which ssl.SSLError is one) when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = False  # pods are dialled by their IP address, which no certificate contains
    context.verify_mode = ssl.CERT_REQUIRED if files.ca is not None else ssl.CERT_NONE
    _load_files(context, files)
    return context


def certificate_names(peer_certificate: object) -> tuple[str, ...]:
    """Return the common names, DNS names, addresses and URIs of a certificate from ``SSLObject.getpeercert``, each once."""
    if not isinstance(peer_certificate, dict):
        return ()
    names: list[str] = []
    for relative_names in peer_certificate.get("subject", ()):
        names += [str(value) for kind, value in relative_names if kind == "commonName"]
    names += [
        str(value)
        for kind, value in peer_certificate.get("subjectAltName", ())
        if kind in ("DNS", "IP Address", "URI", "email")
    ]
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate holds, in seconds since 1970."""

    not_before: float
    not_after: float


def validity(peer_certificate: object) -> Validity | None:
    """Return the times of a verified certificate from ``SSLObject.getpeercert``; None without one, or with unreadable times."""
    if not isinstance(peer_certificate, dict):
        return None
    try:
        begins, ends = (ssl.cert_time_to_seconds(str(peer_certificate[key])) for key in ("notBefore", "notAfter"))
    except (KeyError, ValueError):
        return None
    return Validity(float(begins), float(ends))


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET


def _load_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.certificate is not None:
        # An empty password: a key with a password is refused, and OpenSSL does not prompt on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    if files.ca is not None:
        # An intermediate authority in the file is enough, as for Java.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cafile=files.ca)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or a mounted Secret is swapped."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


_READ_BYTES = 64 * 1024


class TlsError(RemotingError):
    """The peer's bytes are not TLS that we accept. ``outgoing`` of the channel may hold the alert for the peer."""


class TlsChannel:
    """One end of a TLS connection without its socket. After every call the caller sends :meth:`outgoing`."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.established = False
        self.ended = False
        """The peer has closed its sending side."""

    def begin(self) -> None:
        """Begin the handshake, as the client."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:  # pragma: no cover - a context that cannot even greet
            raise TlsError(_text_of(error)) from error

    def receive(self, data: bytes) -> bytes:
        """Return the plain bytes that ``data`` completes. After a TlsError nothing more can be read."""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
            while chunk := self._object.read(_READ_BYTES):
                plain.append(chunk)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsError(_text_of(error)) from error
        return b"".join(plain)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt bytes to send."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def end(self) -> None:
        """Send the TLS close notification."""
        try:
            self._object.unwrap()
        except ssl.SSLError:  # the peer's own notification is not awaited
            return

    def outgoing(self) -> bytes:
        """Return the bytes to send now."""
        return self._outgoing.read()

    def peer_names(self) -> tuple[str, ...]:
        """Return the names in the peer's verified certificate; empty if it sent none."""
        return certificate_names(self._object.getpeercert())

    def peer_validity(self) -> Validity | None:
        """Return from when until when the peer's verified certificate holds; None if it sent none."""
        return validity(self._object.getpeercert())

    def version(self) -> str:
        """Return the version, for example ``TLSv1.3``."""
        return self._object.version() or ""


def _text_of(error: ssl.SSLError) -> str:
    return error.reason or str(error)
