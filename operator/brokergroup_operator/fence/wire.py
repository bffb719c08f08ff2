"""What is between a connection and its frames: nothing, or TLS.

TLS costs 6 MiB, so it is imported only where it is asked for. Certificates are looked at again while the fence runs: one
that is renewed, or a new authority in the mounted volume, holds for the next connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.fence.settings import FenceSettingsError, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.tls import TlsChannel


class Wire(Protocol):
    """One connection's. Bytes to be sent are taken with ``outgoing``, after each call."""

    def begin(self) -> None:
        """The connection stands."""

    def send(self, data: bytes) -> None:
        """A whole frame is to be sent, as soon as that is possible."""

    def receive(self, data: bytes) -> bytes:
        """The bytes of frames in what the other side sent. RemotingError: nothing more can be read."""

    def outgoing(self) -> bytes:
        """What is to be sent now."""


class PlainWire:
    """Frames as they are."""

    def __init__(self) -> None:
        self._outgoing = b""

    def begin(self) -> None:
        """Nobody has to be greeted."""

    def send(self, data: bytes) -> None:
        self._outgoing += data

    def receive(self, data: bytes) -> bytes:
        return data

    def outgoing(self) -> bytes:
        taken, self._outgoing = self._outgoing, b""
        return taken


class TlsWire:
    """Frames in TLS; what is to be sent waits for the end of the handshake."""

    def __init__(self, channel: TlsChannel) -> None:
        self._channel = channel
        self._waiting = b""

    def begin(self) -> None:
        self._channel.begin()

    def send(self, data: bytes) -> None:
        self._waiting += data
        self._seal()

    def receive(self, data: bytes) -> bytes:
        plain = self._channel.receive(data)
        self._seal()
        return plain

    def outgoing(self) -> bytes:
        return self._channel.outgoing()

    def _seal(self) -> None:
        if self._channel.established and self._waiting:
            self._channel.send(self._waiting)
            self._waiting = b""


def tls_wires(settings: TlsSettings, now_seconds: Callable[[], float]) -> Callable[[], Wire]:
    """Makes the wires of one side. ``FenceSettingsError`` when a file cannot be used."""
    from rocketmq_remoting.tls import ClientTls, TlsChannel, TlsConfigurationError, TlsFiles  # noqa: PLC0415 (memory)

    try:
        tls = ClientTls(TlsFiles(certificate=settings.certificate, key=settings.key, ca=settings.authority))
    except TlsConfigurationError as error:
        raise FenceSettingsError(str(error)) from error
    return lambda: TlsWire(TlsChannel(tls.context.get(now_seconds()), server_side=False))
