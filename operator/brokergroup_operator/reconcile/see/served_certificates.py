"""Asks a broker's port for the certificate that it serves, beside the passes: a broker that never answers must hold no pass."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from rocketmq_remoting.address import Address
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import TlsFiles, Validity, client_context, validity

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

log = structlog.get_logger(__name__)
HANDSHAKE_SECONDS: Final = 3.0
# A broker is asked again after so long; until the answer is there the former one counts, for as long again.
ASKED_AGAIN_SECONDS: Final = 300.0
AT_ONCE: Final = 8


class ServedCertificates(Protocol):
    """Knows what brokers serve."""

    def served(self, address: str) -> Validity | None:
        """From when until when the certificate holds that is served there (host:port); None: unknown. Returns at once."""
        ...


@dataclass(frozen=True)
class VerifiedHandshake:
    """`authorities`: the file of those by which the controllers verify their clients; None: no certificate is verified."""

    authorities: Path | None
    handshake_seconds: float = HANDSHAKE_SECONDS

    async def __call__(self, address: str) -> Validity | None:
        """Return what is served there; None if the authorities do not verify it, or no answer comes in time."""
        if self.authorities is None:
            return None
        try:
            # Read anew each time: the file is mounted, and changes.
            context = await asyncio.to_thread(client_context, TlsFiles(ca=self.authorities))
            target = Address.parse(address, "address")
            async with asyncio.timeout(self.handshake_seconds):
                _, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        except (OSError, RemotingError, ValueError) as error:
            # A certificate that another authority signed, one whose time is over, a server without TLS, silence.
            log.info("certificate.not_seen", broker=address, error=f"{type(error).__name__}: {error}")
            return None
        found: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        return validity(found.getpeercert())


@dataclass
class CertificatesAside:
    """One handshake for each address in five minutes, while passes ask for it."""

    handshake: Callable[[str], Awaitable[Validity | None]]
    clock: Callable[[], float] = time.monotonic
    # The oldest answer first.
    _found: dict[str, tuple[float, Validity | None]] = field(default_factory=dict)
    _asked: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def served(self, address: str) -> Validity | None:
        now = self.clock()
        self._forget(now - 2 * ASKED_AGAIN_SECONDS)
        at, found = self._found.get(address, (None, None))
        if (at is None or now - at >= ASKED_AGAIN_SECONDS) and address not in self._asked:
            self._asked[address] = asyncio.create_task(self._ask(address), name=f"certificate of {address}")
        return found

    def _forget(self, before_seconds: float) -> None:
        """The old ones alone are looked at: one issuer may renew the certificates of thousands of brokers on one day."""
        while self._found and self._found[oldest := next(iter(self._found))][0] < before_seconds:
            del self._found[oldest]

    async def _ask(self, address: str) -> None:
        try:
            async with self._places:
                found = await self.handshake(address)
            self._found.pop(address, None)
            self._found[address] = self.clock(), found
        finally:
            del self._asked[address]

    async def stop(self) -> None:
        """Cancel what is being asked."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
