"""A producer that costs little: ready-made frames with a window of unanswered ones, and the time each answer took.

It parses of an answer only the opaque and the code, so that on a small machine the broker is measured and not the producer.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable

_CODE = re.compile(rb'"code":(-?\d+)')
_OPAQUE = re.compile(rb'"opaque":(-?\d+)')


@dataclass
class Result:
    """What one run measured."""

    seconds: float = 0.0
    latencies_seconds: list[float] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)

    def percentile_ms(self, part: float) -> float | None:
        """How long that part of the sends waited at most; None if there were none."""
        ordered = sorted(self.latencies_seconds)
        return ordered[int(part * (len(ordered) - 1))] * 1000 if ordered else None


class Producer(asyncio.Protocol):
    """One connection that keeps ``window`` sends unanswered for as long as ``goes_on`` says."""

    def __init__(self, result: Result, body: bytes, *, window: int, goes_on: Callable[[], bool]) -> None:
        """Nothing is sent before the connection stands."""
        self._result = result
        self._window = window
        self._goes_on = goes_on
        self._sent: dict[int, float] = {}
        self._received = bytearray()
        self._opaque = 1_000_000_000
        values = {"a": "PG", "b": "Bench", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
        values["i"] = r"UNIQ_KEY\u00017F00000100002A9F3B6E0000000000002\u0002WAIT\u0001true\u0002"  # as Java's producer
        fields = ",".join(f'"{name}":"{value}"' for name, value in values.items())
        head = f'{{"code":310,"extFields":{{{fields}}},"flag":0,"language":"PYTHON","opaque":%d,'
        self._head = head + '"serializeTypeCurrentRPC":"JSON","version":479}'
        self._header_bytes = len(self._head % self._opaque)
        self._prefix = (4 + self._header_bytes + len(body)).to_bytes(4, "big") + self._header_bytes.to_bytes(4, "big")
        self._body = body
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fill the window."""
        self._transport = cast("asyncio.Transport", transport)
        self._fill(self._window)

    def data_received(self, data: bytes) -> None:
        """Answers: each makes room for another send."""
        self._received += data
        now = time.perf_counter()
        answered = position = 0
        while len(self._received) - position >= 8:
            end = position + 4 + int.from_bytes(self._received[position : position + 4], "big")
            if end > len(self._received):
                break
            frame = bytes(self._received[position:end])
            position = end
            answered += 1
            self._note(frame, now)
        del self._received[:position]
        if self._goes_on():
            self._fill(answered)
        elif not self._sent and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever measures has to know."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the broker closed the connection"))

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def _note(self, frame: bytes, now: float) -> None:
        opaque, code = _OPAQUE.search(frame), _CODE.search(frame)
        assert opaque is not None
        assert code is not None
        self._result.latencies_seconds.append(now - self._sent.pop(int(opaque[1])))
        number = int(code[1])
        self._result.codes[number] = self._result.codes.get(number, 0) + 1

    def _fill(self, count: int) -> None:
        now = time.perf_counter()
        frames: list[bytes] = []
        for _ in range(count):
            self._opaque += 1
            self._sent[self._opaque] = now
            frames += (self._prefix, (self._head % self._opaque).encode(), self._body)
        if frames:
            self._transport.write(b"".join(frames))


async def produce(address: str, *, seconds: float, body_bytes: int, connections: int, window: int) -> Result:
    """Send for so long; every send is waited for."""
    found = Address.parse(address, "address")
    result = Result()
    started = time.perf_counter()
    loop = asyncio.get_running_loop()

    def goes_on() -> bool:
        return time.perf_counter() - started < seconds

    producers: list[Producer] = []
    for _ in range(connections):
        _, producer = await loop.create_connection(
            lambda: Producer(result, bytes(65 + n % 26 for n in range(body_bytes)), window=window, goes_on=goes_on),
            found.host,
            found.port,
        )
        producers.append(producer)
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*(producer.done for producer in producers))
    result.seconds = time.perf_counter() - started
    for producer in producers:
        producer.close()
        await asyncio.gather(producer.done, return_exceptions=True)
    return result
