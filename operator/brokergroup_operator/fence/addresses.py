"""Names to numbers, never waited for: asked by a thread, and the last answer stays in use while there is no newer one.

An isolated pod has no DNS either; a fence that waits for it would not kill.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.address import is_ip

if TYPE_CHECKING:
    from rocketmq_remoting.address import Address

_REFRESH_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.5


class AddressBook:
    """The numbers of a few names."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._names = sorted({address.host for address in addresses if not is_ip(address.host)})

    def start(self) -> None:
        """Begin to ask, if there is a name at all."""
        if self._names:
            threading.Thread(target=self._refresh_for_ever, name="names", daemon=True).start()

    def resolve(self, address: Address) -> str | None:
        """The number of a host, None while nobody has told it yet."""
        return next(iter(self.resolve_all(address.host)), None)

    def resolve_all(self, host: str) -> tuple[str, ...]:
        """All that a name stands for: the pods behind a headless Service."""
        return (host,) if is_ip(host) else self._numbers.get(host, ())

    def _refresh_for_ever(self) -> None:
        while True:
            found = [self._look_up(name) for name in self._names]
            time.sleep(_REFRESH_SECONDS if all(found) else _RETRY_SECONDS)

    def _look_up(self, name: str) -> bool:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return False
        self._numbers[name] = tuple(dict.fromkeys(str(one[4][0]) for one in found))
        return True
