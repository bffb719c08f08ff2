"""Has the fence inside a pod kill its broker, and believes it only by its signature (``fence/kill_order.py``, docs/adr/0012).

It goes on beside the pod's deletion, which needs nothing of it: a fence that is silent, old or without the key costs no time. What
it gains is the kubelet's turn, half a second and more, until it reports a container dead.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.kubernetes_binding import pod_ip
from brokergroup_operator.fence.kill_order import (
    CHALLENGE,
    CONFIRMATION,
    NONCE_BYTES,
    ORDER,
    QUESTION,
    Message,
    open_sealed,
    seal,
)

if TYPE_CHECKING:
    from brokergroup_operator.api.meaning.fence_keys import FenceKeys
    from brokergroup_operator.kube.client import JsonObject

# A datagram may be lost, and a fence may be just waking.
REPEAT_SECONDS: Final = 0.05
# An order that is not confirmed by then is asked anew: its challenge is no longer good, or the fence was started again.
ANEW_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PodFence:
    """Where the fence of one pod hears orders, and with which key."""

    pod: str
    pod_uid: str
    host: str
    port: int
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, pod: JsonObject, keys: FenceKeys | None) -> PodFence | None:
        """None where this pod's fence takes no orders of ours."""
        key = keys.key_in(pod) if keys is not None else None
        host, port = pod_ip(pod), _order_port(pod)
        if key is None or not host or port is None:
            return None
        return cls(str(pod["metadata"]["name"]), str(pod["metadata"]["uid"]), host, port, key)


def _order_port(pod: JsonObject) -> int | None:
    for container in pod["spec"].get("containers") or []:
        if container.get("name") == names.CONTAINER_FENCE:
            for port in container.get("ports") or []:
                if port.get("name") == names.PORT_FENCE and port.get("protocol") == "UDP":
                    return int(port["containerPort"])
    return None


async def confirmed_kill(fence: PodFence) -> str | None:
    """Order the kill until its proof is there; returns how it is known, or None where no way leads there.

    The caller bounds it: the proof may never come.
    """
    order, loop = _Order(fence), asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(lambda: order, remote_addr=(fence.host, fence.port))
    except OSError:
        return None
    order.transport = transport
    try:
        while not order.confirmed.is_set():
            order.send()
            with suppress(TimeoutError):
                await asyncio.wait_for(order.confirmed.wait(), REPEAT_SECONDS)
    finally:
        transport.close()
    return f"pod {fence.pod}: its fence has killed the broker, and signed that it is dead"


class _Order(asyncio.DatagramProtocol):
    """One order: the question until the challenge is there, then the order until it is confirmed."""

    def __init__(self, fence: PodFence) -> None:
        self._fence = fence
        self._loop = asyncio.get_running_loop()
        self._said, self._began = _question(), self._loop.time()
        self.transport: asyncio.DatagramTransport | None = None
        self.confirmed = asyncio.Event()

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 (asyncio's own form)
        answer = open_sealed(data, self._fence.key, self._fence.pod_uid)
        if answer is None or answer.nonce != self._said.nonce:
            return
        if answer.tag == CHALLENGE and self._said.tag == QUESTION:
            self._said = Message(ORDER, answer.nonce, answer.challenge)
            self.send()
        elif answer.tag == CONFIRMATION and self._said.tag == ORDER and answer.challenge == self._said.challenge:
            self.confirmed.set()

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there yet, or no more: asked again, until the caller ends it."""

    def send(self) -> None:
        if self._said.tag == ORDER and self._loop.time() - self._began > ANEW_SECONDS:
            self._said, self._began = _question(), self._loop.time()
        if self.transport is not None:
            self.transport.sendto(seal(self._said, self._fence.key, self._fence.pod_uid))


def _question() -> Message:
    return Message(QUESTION, os.urandom(NONCE_BYTES))
