"""TLS as RocketMQ has it: on the same port as plain frames, told apart by the first byte.

There is no negotiation in the protocol. A connection that begins with 0x16 begins with a TLS ClientHello; no frame can begin so,
since its length would be above 16 MiB. Clients send no server name and check none, so nothing of the kind is asked of them.

Certificates are files that somebody renews (cert-manager, a mounted Secret). They are looked at again while the server runs: new
connections get the new certificate, old ones live on, and a new file that does not load leaves the old one in force and is
reported as an error until it loads. TLS 1.2 is the oldest version spoken, and nothing is renegotiated. No session is resumed but in
TLS 1.2, and none from before the files changed: every connection is judged by the certificate authority that is in force when it is
made. (Python has no way to tell OpenSSL to keep no sessions of TLS 1.2.)
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
    """PEM files: our certificate with its chain, its key without a password, and whom we believe."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise TlsConfigurationError("certificate and key: expected both files or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsServerSettings:
    """What a server asks of its peers."""

    mode: TlsMode
    files: TlsFiles
    client_certificates: ClientCertificates = ClientCertificates.NONE
    handshake_timeout_seconds: float = 10.0
    """From the first byte of the hello (where TLS is enforced: from the connection) to the end of the handshake."""
    max_handshakes: int = 512
    """Unfinished handshakes at once; one more closes the newcomer."""
    check_files_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.mode is not TlsMode.DISABLED and self.files.certificate is None:
            raise TlsConfigurationError(f"mode is {self.mode.value}: expected a certificate file and a key file")
        if self.client_certificates is not ClientCertificates.NONE and self.files.ca is None:
            raise TlsConfigurationError(
                f"client_certificates is {self.client_certificates.value}: expected a ca file to check them against"
            )


class ReloadedContext:
    """An ``SSLContext`` made of files, made anew when they change."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], *, check_seconds: float) -> None:
        self._files = files
        self._make = make
        self._check_seconds = check_seconds
        self._seen = self._look()
        self._context = self._load()
        self._checked_seconds: float | None = None
        self.problem: str | None = None
        """Why the files as they are now are not in use; None while they are."""

    def get(self, now_seconds: float) -> ssl.SSLContext:
        """The context for a new connection."""
        if self._checked_seconds is None or now_seconds - self._checked_seconds >= self._check_seconds:
            self._checked_seconds = now_seconds
            self.refresh()
        return self._context

    def refresh(self) -> None:
        """Look at the files; a broken one is tried again each time, and told once for each state it is in."""
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
    """A server's TLS while it runs: the context in force, and how many handshakes are under way."""

    def __init__(self, settings: TlsServerSettings) -> None:
        self.settings = settings
        self.handshakes = 0
        self.context = ReloadedContext(
            settings.files,
            lambda files: server_context(files, settings.client_certificates),
            check_seconds=settings.check_files_seconds,
        )


class ClientTls:
    """A client's TLS: believes the certificate authority it was given, or (as Java by default) anybody if it was given none."""

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
    context.check_hostname = False  # pods are dialled by their IP, which no certificate names
    context.verify_mode = ssl.CERT_REQUIRED if files.ca is not None else ssl.CERT_NONE
    _load_files(context, files)
    return context


def certificate_names(peer_certificate: object) -> tuple[str, ...]:
    """Common names, DNS names, addresses and URIs of a certificate as ``SSLObject.getpeercert`` gives it, each once."""
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


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET


def _load_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.certificate is not None:
        # The password keeps OpenSSL from asking the terminal for one: a key that has one is refused instead.
        context.load_cert_chain(files.certificate, files.key, password="")
    if files.ca is not None:
        context.load_verify_locations(cafile=files.ca)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or a mounted Secret is swapped."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


_READ_BYTES = 64 * 1024


class TlsError(RemotingError):
    """What the peer sent is no TLS we accept. ``outgoing`` of the channel may hold the alert that tells him."""


class TlsChannel:
    """One end. After every call, :meth:`outgoing` is to be sent."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.established = False
        self.ended = False
        """The peer said that he sends no more."""

    def begin(self) -> None:
        """The client speaks first."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:  # pragma: no cover - a context that cannot even greet
            raise TlsError(_text_of(error)) from error

    def receive(self, data: bytes) -> bytes:
        """The plain bytes that these complete. TlsError: nothing more can be read."""
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
        """Seal what is to be sent."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def end(self) -> None:
        """Say that nothing more will be sent."""
        try:
            self._object.unwrap()
        except ssl.SSLError:  # the peer's own farewell is not waited for
            return

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        return self._outgoing.read()

    def peer_names(self) -> tuple[str, ...]:
        """The names in the certificate that the peer showed and that was checked; empty where he showed none."""
        return certificate_names(self._object.getpeercert())

    def version(self) -> str:
        """As ``TLSv1.3``."""
        return self._object.version() or ""


def _text_of(error: ssl.SSLError) -> str:
    return error.reason or str(error)
