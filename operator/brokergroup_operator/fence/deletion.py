"""``python -m brokergroup_operator.fence.deletion``: the fence of a Python broker: kills on order, or when its pod is deleted.

Silence is no reason to kill a Python master: after a freeze it asks the controller again before it acknowledges. But a stopped
process does not act on SIGTERM, and the kubelet waits for the grace period, 2 s at least; until then the operator has no proof of
death and elects no master. So this process waits for the operator's signed order (``datagrams.py``), or for the kubelet's own
SIGTERM, upon which it kills a broker that is stopped. Once a second it looks for the order to stop the broker (``stopping.py``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.datagrams import KeyFile, KillOrders, bound_socket, datagrams
from brokergroup_operator.fence.log import tell
from brokergroup_operator.fence.processes import BrokerProcesses, boot_seconds
from brokergroup_operator.fence.settings import (
    FenceSettingsError,
    fence_of,
    key_file,
    own_address,
    pod_uid,
    stop_order_file,
    stop_seconds,
)
from brokergroup_operator.fence.stopping import LOOK_SECONDS as LOOK_FOR_ORDER_SECONDS
from brokergroup_operator.fence.stopping import StopOrder

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


LOOK_SECONDS: Final = 0.05
WHY: Final = "the pod is being deleted, and its broker is stopped"
BY_ORDER: Final = "the operator's order"
_LEAVE: Final = (signal.SIGTERM, signal.SIGINT)


class DeletionFence:
    """The fence of a Python broker. ``run()`` returns when the pod is being deleted and its broker has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises FenceSettingsError."""
        uid = pod_uid(environment)
        self._processes = BrokerProcesses(uid)
        self._orders = KillOrders(uid, KeyFile(key_file(environment)), self._kill_by_order)
        self._stop_order = StopOrder(stop_order_file(environment), uid, stop_seconds(environment))
        self._socket = _order_socket(environment)
        self._leaving, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)
        signal.set_wakeup_fd(self._signalled)
        for number in _LEAVE:
            signal.signal(number, lambda *_: None)  # the wake-up pipe reports it

    def run(self) -> None:
        """Wait for the pod's deletion, then until its broker has ended."""
        poller = select.poll()
        poller.register(self._leaving, select.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, select.POLLIN)
        tell("watching for the pod's deletion", orders=self._socket is not None)
        leaving = False
        while not leaving or self._processes.any_left(time.monotonic()):
            if leaving and self._processes.broker_is_stopped():
                tell("killed", why=WHY, pids=self._processes.kill(time.monotonic()))
            if not leaving:
                self._stop_order.look(time.monotonic())
            ready = {found for found, _ in poller.poll((LOOK_SECONDS if leaving else LOOK_FOR_ORDER_SECONDS) * 1000)}
            if self._leaving in ready:
                leaving = True
                poller.unregister(self._leaving)
            if self._socket is not None and self._socket.fileno() in ready:
                self._answer(self._socket)

    def _answer(self, bound: socket.socket) -> None:
        for datagram, sender in datagrams(bound):
            reply = self._orders.answer(datagram, boot_seconds())
            if reply is not None:
                with suppress(OSError):
                    bound.sendto(reply, sender)

    def _kill_by_order(self) -> float | None:
        pids, started = self._processes.kill_and_prove(time.monotonic())
        tell("killed", why=BY_ORDER, pids=pids, dead=started is not None)
        return started


def _order_socket(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the socket for orders; None without a key, or if the port is taken: then only the pod's deletion remains."""
    if key_file(environment) is None or not environment.get("FENCE_LOCAL_ADDRESS"):
        return None
    address = fence_of(own_address(environment, "FENCE_LOCAL_ADDRESS"))
    try:
        return bound_socket(address)
    except OSError as error:
        tell("no orders can be heard", address=str(address), why=str(error))
        return None


def main() -> int:
    """Wait for an order or the pod's deletion."""
    try:
        fence = DeletionFence(os.environ)
    except FenceSettingsError as error:
        sys.stderr.write(f"fence: {error}\n")
        return 2
    fence.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
