"""TLS over one connection, without its socket: bytes of the peer in, plain bytes out, and what is to be sent in between."""

from __future__ import annotations

import ssl

from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import certificate_names

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
