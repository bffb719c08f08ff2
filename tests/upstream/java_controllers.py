"""Java controllers of version 5.5.0 with short intervals, of both kinds: DLedger and jRaft."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.errors import RemotingError
from tests.real.parts import install
from tests.real.parts.java import JavaProgram, java_command, write_properties
from tests.real.parts.process import RealProcessError, start
from tests.support.places import free_port
from tests.upstream.lab import ask

if TYPE_CHECKING:
    from pathlib import Path

QUICK: dict[str, str | int] = {
    "mappedFileSize": 16777216,
    "scanNotActiveBrokerInterval": 100,
    "scanInactiveMasterInterval": 500,
}


@dataclass
class JavaHost:
    """A Java controller that can be killed and restarted on its stored data."""

    folder: Path
    program: JavaProgram

    @classmethod
    def start(cls, folder: Path) -> JavaHost:
        return cls(folder, wait_until_leading(start_dledger(folder)))

    def restart(self) -> None:
        """Restart it as after a crash, at the same address. Blocks."""
        self.program.process.kill()
        self.program = wait_until_leading(start_dledger(self.folder, port=self.program.port))


QUIET_JAVA = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)


def start_dledger(folder: Path, *, port: int = 0, **extra: str | int) -> JavaProgram:
    """Start one node; a restart in the same folder and on the same port continues from its log."""
    port = port or free_port()
    peers = {
        "controllerDLegerGroup": "tests",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
    }
    return _start(folder, port, {**peers, **QUICK, **extra})


def start_jraft(folder: Path, *, version: str = install.ROCKETMQ_VERSION, **extra: str | int) -> JavaProgram:
    """Start one node, with its Raft on a separate port."""
    port, raft_port = free_port(), free_port()
    peers = {
        "controllerType": "jRaft",
        "jRaftGroupId": "tests",
        "jRaftServerId": f"127.0.0.1:{raft_port}",
        "jRaftInitConf": f"127.0.0.1:{raft_port}",
        "jRaftControllerRPCAddr": f"127.0.0.1:{port}",
    }
    return _start(folder, port, {**peers, **QUICK, **extra}, version=version)


def _start(
    folder: Path, port: int, properties: dict[str, str | int], *, version: str = install.ROCKETMQ_VERSION
) -> JavaProgram:
    properties = {
        "controllerStorePath": str(folder / "store"),
        "configStorePath": str(folder / "controller.properties"),
        **properties,
    }
    config = write_properties(folder / "controller.conf", properties)
    home = install.controller_home(version)
    command = [*java_command("controller", folder, flags=QUIET_JAVA, home=home), "-c", str(config)]
    return JavaProgram(start("controller", command, log=folder / "controller.log"), "127.0.0.1", port)


def wait_until_leading(program: JavaProgram) -> JavaProgram:
    """Wait until a controller leads: before that it listens, and answers 2007 or an exception. Blocks, in an event loop too."""
    program.wait_until_listening()
    with ThreadPoolExecutor(1) as another_thread:
        another_thread.submit(asyncio.run, _until_leading(program)).result()
    return program


async def _until_leading(program: JavaProgram, deadline_seconds: float = 60.0) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + deadline_seconds
    client = RemotingClient()
    try:
        while clock() < deadline:
            try:
                answer = await ask(
                    client, program.address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, brokerName="is-there-a-leader"
                )
            except RemotingError:
                answer = None
            if answer is not None and answer.code == 0:
                return
            await asyncio.sleep(0.1)
    finally:
        await client.close()
    raise RealProcessError(
        f"{program.address}: no leader within {deadline_seconds} s; log ends:\n{program.process.tail()}"
    )
