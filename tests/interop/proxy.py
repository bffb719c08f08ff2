"""RocketMQ 5's gRPC client through a real Java Proxy in cluster mode, to a group of a Python replica and a Java broker.

A Proxy consumes with POP, which only Java brokers do: so messages are sent to either master, and received while Java is master.
While Python is master, the Proxy has to answer a consumer at once, with an error that gives the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.interop.campaign import compare_members, metadata_mismatches
from tests.interop.lab import DEADLINE_SECONDS, PYTHON, Lab
from tests.interop.logs import Comparison
from tests.real.parts import install
from tests.real.parts.java import start_proxy
from tests.real.parts.process import RealProcessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.parts.java import JavaProgram

TOPIC = "grpc"
GROUP = "grpc-readers"
PROGRAM = Path(__file__).parent / "grpc_client.py"
PROXY_ATTEMPTS = 3
SHARE = 200
# A busy machine answers late; the consumer ends as soon as it has them all.
CONSUME_SECONDS = 240
# The NameServer learns of a topic, the Proxy of the route and of the consumer: after that there is nothing to wait for.
SETTLED_SECONDS = 30.0
AT_ONCE_SECONDS = 5.0
NOT_SUPPORTED = "50100"


@dataclass
class ProxyOutcome:
    """The gRPC client's acknowledgements and received messages."""

    sent: int = 0
    received: int = 0
    lost: list[str] = field(default_factory=list)
    redelivered: int = 0
    failovers: int = 0
    # Proxies that ended before they listened, and were started again.
    died: int = 0
    complaints: list[str] = field(default_factory=list)
    comparison: Comparison = field(default_factory=Comparison)


class GrpcClient:
    """`grpc_client.py` in the Python that has the client's packages."""

    def __init__(self, folder: Path, endpoint: str, *, authority: Path | None = None) -> None:
        """With an authority it connects with TLS only, and verifies the Proxy's certificate and name."""
        trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority), "ROCKETMQ_CLIENT_TLS": "1"} if authority else {}
        environment = {**os.environ, **trusted, "PYTHONPATH": str(install.python_client_folder()), "HOME": str(folder)}
        self._log = (folder / "grpc-client.log").open("wb")
        self.process = subprocess.Popen(
            ["python3", str(PROGRAM), endpoint, TOPIC, GROUP],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    async def ask(self, *words: str | int) -> dict[str, Any]:
        """One command and its answer."""
        return await asyncio.to_thread(self._ask, " ".join(map(str, words)))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or b'{"error": "the client ended"}')
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()


async def proxy_of(lab: Lab, outcome: ProxyOutcome, say: Callable[[str], None]) -> JavaProgram:
    """A Proxy that listens. On a busy machine it gives its own first questions up after 2 s and ends: counted, then another."""
    assert lab.name_server is not None
    for attempt in range(1, PROXY_ATTEMPTS + 1):
        proxy = start_proxy(lab.folder / f"proxy-{attempt}", name_server_address=lab.name_server.address)
        try:
            return await asyncio.to_thread(proxy.wait_until_listening, DEADLINE_SECONDS)
        except RealProcessError as error:
            proxy.process.kill()
            outcome.died += 1
            say(f"Proxy {attempt} died before it listened: {error}")
            if attempt == PROXY_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def run_through_proxy(folder: Path, say: Callable[[str], None]) -> ProxyOutcome:
    """The whole part; every process is stopped at its end."""
    lab = Lab(folder, install.ROCKETMQ_VERSION)
    outcome = ProxyOutcome()
    proxy: JavaProgram | None = None
    client: GrpcClient | None = None
    try:
        await asyncio.to_thread(lab.start, {"python": PYTHON, "java": install.ROCKETMQ_VERSION})
        for name in lab.members:
            lab.start_member(name)
            await lab.until_whole()
        proxy = await proxy_of(lab, outcome, say)
        await make_topic_and_group(lab)
        client = GrpcClient(folder, proxy.address)
        await converse(lab, client, outcome, say)
    finally:
        if client is not None:
            client.kill()
        if proxy is not None:
            proxy.process.kill()
        await lab.stop()
    return outcome


async def make_topic_and_group(lab: Lab) -> None:
    """Create topic and group as `mqadmin updateTopic` and `updateSubGroup` do; a Proxy needs existing ones."""
    master = await lab.until_whole()
    topic = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    made = await lab.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic)
    assert made.code == ResponseCode.SUCCESS, made
    body = json.dumps({"groupName": GROUP}).encode()
    made = await lab.ask(master.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert made.code == ResponseCode.SUCCESS, made


async def converse(lab: Lab, client: GrpcClient, outcome: ProxyOutcome, say: Callable[[str], None]) -> None:
    """Python is master: send, and be refused to receive. Java: receive. Crash, send to Python. Java: receive the rest."""
    outcome.sent += await send(client, 0, outcome)
    await refused_at_python(lab, client, outcome, say)
    outcome.complaints += await metadata_mismatches(lab, (TOPIC,), (GROUP,))
    await lab.switch_over("java")
    keys = await receive(client, 0, SHARE, outcome, say)
    outcome.sent += await send(client, SHARE, outcome)
    new = await lab.fail_over()
    say(f"Java killed: {new.name} is master")
    outcome.sent += await send(client, 2 * SHARE, outcome)
    await refused_at_python(lab, client, outcome, say)
    await lab.switch_over("java")
    keys += await receive(client, SHARE, 2 * SHARE, outcome, say)
    outcome.received = len(set(keys))
    outcome.redelivered = len(keys) - outcome.received
    outcome.failovers = lab.failovers
    outcome.comparison = await compare_members(lab, say)


async def send(client: GrpcClient, first: int, outcome: ProxyOutcome) -> int:
    """A share of messages; what had to be tried again is no complaint, what is not sent is."""
    answer = await client.ask("produce", first, SHARE)
    sent = int(answer.get("sent", 0))
    if sent != SHARE:
        outcome.complaints.append(f"gRPC producer from {first}: {answer}")
    return sent


async def refused_at_python(lab: Lab, client: GrpcClient, outcome: ProxyOutcome, say: Callable[[str], None]) -> None:
    """A consumer at a Python master gets an immediate refusal, once the Proxy knows the consumer."""
    deadline = asyncio.get_running_loop().time() + SETTLED_SECONDS
    while True:
        answer = await client.ask("receive")
        if answer.get("seconds", 0.0) > AT_ONCE_SECONDS or "received" in answer:
            outcome.complaints.append(f"gRPC consumer at a Python master: {answer}")
            return
        if NOT_SUPPORTED in answer["error"]:
            say(f"gRPC consumer at a Python master: {answer}")
            return
        if asyncio.get_running_loop().time() > deadline:
            outcome.complaints.append(f"gRPC consumer at a Python master, after {SETTLED_SECONDS} s: {answer}")
            return
        lab.check_processes()
        await asyncio.sleep(0.1)


async def receive(
    client: GrpcClient, first: int, count: int, outcome: ProxyOutcome, say: Callable[[str], None]
) -> list[str]:
    """Messages `first` and on, from a Java master."""
    answer = await client.ask("consume", first, count, CONSUME_SECONDS)
    keys: list[str] = answer.get("keys", [])
    missing = {f"g{number:06}" for number in range(first, first + count)} - set(keys)
    outcome.lost += [f"gRPC consumer: {key} never came; {answer.get('failed', answer)[-1:]}" for key in sorted(missing)]
    say(f"gRPC consumer: {len(keys)} deliveries of {count} from {first}, {len(missing)} missing")
    return keys
