"""The demo's client: sends numbered messages, keeps a ledger of acknowledgements, and reads the final master's log back.

A message counts as acknowledged only when its send was answered SUCCESS. Every send has a key of its own, and none is retried
under the same key: a send without an answer may be in the log or not, and neither is an error. An acknowledged key that the final
master's log does not hold is a lost message.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import StoredMessage, decode_records
from rocketmq_remoting.tls import ClientTls

# The address `host:port` of the group's master as far as the route knows, or None.
Route = Callable[[], str | None]

_QUEUES = 4
_PAYLOAD_BYTES = 200
_BATCH = 32
_TIMEOUT_SECONDS = 5.0
_JAVA = Path(__file__).parent / "java"
_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Acknowledgement:
    """One send answered SUCCESS; `at_seconds` is wall-clock time at the producer."""

    key: str
    at_seconds: float


@dataclass
class Ledger:
    """Every acknowledgement, in the order in which it arrived."""

    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    failures: int = 0
    # Why sends were not acknowledged, as far as their producer says it.
    reasons: list[str] = field(default_factory=list)

    def acknowledge(self, key: str, at_seconds: float) -> None:
        self.acknowledgements.append(Acknowledgement(key, at_seconds))

    def fail(self, why: str = "") -> None:
        self.failures += 1
        self.reasons += [why] if why else []

    def first_after(self, at_seconds: float) -> Acknowledgement | None:
        """Return the first acknowledgement at or after a point in time; the search begins at the end, where it mostly is."""
        found = None
        for acknowledgement in reversed(self.acknowledgements):
            if acknowledgement.at_seconds < at_seconds:
                break
            found = acknowledgement
        return found

    def rate_per_second(self, now_seconds: float, window_seconds: float = 2.0) -> float:
        """Return the acknowledgements per second over the last window."""
        recent = itertools.takewhile(
            lambda entry: entry.at_seconds >= now_seconds - window_seconds, reversed(self.acknowledgements)
        )
        return sum(1 for _ in recent) / window_seconds

    def missing_from(self, keys_in_log: set[str]) -> list[str]:
        """Return the acknowledged keys that the log does not hold, sorted."""
        return sorted({entry.key for entry in self.acknowledgements} - keys_in_log)


@dataclass
class DemoProducer:
    """Keeps `workers` sends outstanding, each paced by `pause_seconds`; acknowledgements go into `ledger`.

    A worker finds the master through a route (the quick start: the watched record; real clients: the NameServer), before each send.
    """

    route: Route
    broker_name: str
    topic: str
    workers: int = 4
    pause_seconds: float = 0.01
    send_timeout_seconds: float = 1.0
    tls: ClientTls | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _keys: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`, and wait for the sends outstanding then."""
        async with asyncio.TaskGroup() as group:
            for queue_id in range(self.workers):
                group.create_task(self._work(queue_id % _QUEUES, stop))

    async def _work(self, queue_id: int, stop: asyncio.Event) -> None:
        # A client for each worker: one that waits for a silent master holds up no other.
        client = RemotingClient(connect_timeout_seconds=0.3, tls=self.tls)
        try:
            while not stop.is_set():
                address = self.route()
                if address is not None:
                    await self._send_one(client, address, queue_id)
                await asyncio.sleep(self.pause_seconds)
        finally:
            await client.close()

    async def _send_one(self, client: RemotingClient, address: str, queue_id: int) -> None:
        key = f"m{next(self._keys):08d}"
        try:
            message = numbered_message(key, broker_name=self.broker_name, topic=self.topic, queue_id=queue_id)
            answer = await client.invoke(address, message, timeout_seconds=self.send_timeout_seconds)
        except RemotingError as error:
            self.ledger.fail(str(error))
            return
        if answer.code == ResponseCode.SUCCESS:
            self.ledger.acknowledge(key, time.time())
        else:
            self.ledger.fail(f"code {answer.code}: {answer.remark}")


def numbered_message(
    key: str, *, broker_name: str, topic: str, queue_id: int, queues: int = _QUEUES
) -> RemotingCommand:
    """Return a SEND_MESSAGE_V2 request; the one-letter names are the wire's."""
    fields = {
        "a": "demo-producer",
        "b": topic,
        "c": "TBW102",
        "d": str(queues),
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"KEYS\x01{key}\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": broker_name,
    }
    body = key.encode().ljust(_PAYLOAD_BYTES, b".")
    return request(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body)


@dataclass
class JavaProducer:
    """The unmodified Java client: runs `NumberedProducer.java`, which prints a line of JSON for each outcome."""

    rocketmq_home: Path
    name_server: str
    topic: str
    log_path: Path
    ledger: Ledger = field(default_factory=Ledger)

    async def run(self, stop: asyncio.Event) -> None:
        """Produce until `stop`. The end of its input stops the producer, after the sends outstanding."""
        with self.log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        reader = asyncio.create_task(self._read(process))
        try:
            await stop.wait()
            if process.stdin is not None:
                process.stdin.close()
            async with asyncio.timeout(_STOP_SECONDS):
                await reader
        finally:
            reader.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _command(self) -> list[str]:
        return [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Drmq.logback.configurationFile={_JAVA / 'logback-quiet.xml'}",
            "-cp", str(self.rocketmq_home / "lib" / "*"),
            str(_JAVA / "NumberedProducer.java"),
            "--name-server", self.name_server, "--topic", self.topic,
        ]  # fmt: skip

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            outcome = json.loads(line)
            if outcome["event"] == "ack":
                self.ledger.acknowledge(outcome["key"], outcome["at_ms"] / 1000)
            else:
                self.ledger.fail()


class ReadbackError(Exception):
    """The log could not be read whole: there is no verdict about lost messages."""


async def read_keys(address: str, topic: str, queues: int, *, tls: ClientTls | None = None) -> set[str]:
    """Return the keys of a topic's messages in the log of the broker at `address`; a key is the body up to the first dot."""
    return {key_of(message) for message in await read_messages(address, topic, queues, tls=tls)}


def key_of(message: StoredMessage) -> str:
    """Return the key of a numbered message."""
    return message.body.split(b".", 1)[0].decode()


async def read_messages(address: str, topic: str, queues: int, *, tls: ClientTls | None = None) -> list[StoredMessage]:
    """Return a topic's messages in the log of the broker at `address`, each as often as a consumer would get it.

    A replica shows consumers only what lies below its confirm offset, so every replica in sync has a message that is found.
    Raises ReadbackError if a queue can't be read to its end.
    """
    client = RemotingClient(tls=tls)
    try:
        parts = [await _read_queue(client, address, topic, queue_id) for queue_id in range(queues)]
    except RemotingError as error:
        raise ReadbackError(f"{address}: topic {topic} not read to its end: {error}") from error
    finally:
        await client.close()
    return list(itertools.chain.from_iterable(parts))


async def _read_queue(client: RemotingClient, address: str, topic: str, queue_id: int) -> list[StoredMessage]:
    end = await _max_offset(client, address, topic, queue_id)
    found: list[StoredMessage] = []
    offset = 0
    while offset < end:
        answer = await client.invoke(address, _pull(topic, queue_id, offset), timeout_seconds=_TIMEOUT_SECONDS)
        fields = answer.ext_fields or {}
        next_offset = int(fields.get("nextBeginOffset", offset))
        if answer.code == ResponseCode.SUCCESS and answer.body:
            found += decode_records(answer.body)
        if next_offset <= offset:
            raise ReadbackError(
                f"{address}: queue {queue_id} of topic {topic} ends at {end}, but the pull at {offset} answered "
                f"code {answer.code} ({answer.remark}) and did not move on"
            )
        offset = next_offset
    return found


async def _max_offset(client: RemotingClient, address: str, topic: str, queue_id: int) -> int:
    fields = {"topic": topic, "queueId": str(queue_id), "committed": "true"}
    answer = await client.invoke(
        address, request(RequestCode.GET_MAX_OFFSET, ext_fields=fields), timeout_seconds=_TIMEOUT_SECONDS
    )
    if answer.code != ResponseCode.SUCCESS:
        raise ReadbackError(
            f"{address}: max offset of queue {queue_id} of {topic}: code {answer.code} ({answer.remark})"
        )
    return int((answer.ext_fields or {})["offset"])


def _pull(topic: str, queue_id: int, offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": "demo-readback",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(_BATCH),
        # Bit 4: the request carries the subscription, so no consumer has to register first.
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return request(RequestCode.PULL_MESSAGE, ext_fields=fields)
