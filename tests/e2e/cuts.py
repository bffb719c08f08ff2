"""Cuts between two members of a group, made with nftables in the network namespace of one pod.

A cut stops one pod's own traffic to some ports of another one; all other traffic of both continues: heartbeats, clients,
requests of the operator. It lasts for a block.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.house import WholeGroup

COMMAND_SECONDS = 20.0
# A broker's port, and the one that its own clients prefer.
CLIENT_PORTS = (10909, 10911)
HA_PORT = 10912
# The kernel tracks a redirected connection only while some rule refers to connections.
REMEMBERS = """table ip remembers {
  chain calls { type filter hook output priority 10; ct state established accept; }
}
"""


@dataclass(frozen=True)
class Place:
    """A pod's network: the host in its address, and a process in its namespace."""

    host: str
    pid: int

    async def run(self, *command: str, stdin: str = "") -> str:
        """Run a command in that namespace, which must succeed."""
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(COMMAND_SECONDS):
            output, errors = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"{command} {stdin!r}: {errors.decode()}"
        return output.decode()


def place_of(group: WholeGroup, broker_id: int) -> Place:
    """Return a running member's network."""
    replicas = group.seen.record["replicas"]
    address = next(str(one["address"]) for one in replicas if one["brokerId"] == broker_id)
    pid = group.pids()[broker_id]
    assert pid is not None, group.story()
    return Place(address.rpartition(":")[0], pid)


@asynccontextmanager
async def cut(here: Place, there: Place, *ports: int) -> AsyncIterator[None]:
    """Silently drop all packets to these ports of the other pod."""
    which = f"ip daddr {there.host} tcp dport {{ {', '.join(map(str, ports))} }} drop"
    async with _rules(here, f"chain out {{ type filter hook output priority 0; {which}; }}"):
        yield


@asynccontextmanager
async def led_astray(here: Place, wanted: Place, found: Place, port: int) -> AsyncIterator[None]:
    """Redirect connections to a port of `wanted` to `found`, and end the open one. Those of the block outlive it."""
    which = f"ip daddr {wanted.host} tcp dport {port}"
    new = f"chain new {{ type nat hook output priority -100; {which} dnat to {found.host}:{port}; }}"
    await here.run("nft", "-f", "-", stdin=REMEMBERS)
    async with _rules(here, new, _reset(which)):
        yield


@asynccontextmanager
async def broken(here: Place, there: Place, port: int) -> AsyncIterator[None]:
    """End the connection to this port of the other pod for both, and refuse new ones."""
    async with _rules(here, _reset(f"ip daddr {there.host} tcp dport {port}")):
        yield


def _reset(which: str) -> str:
    """The reset of an open connection must get out, or the other end considers it open."""
    return f"chain old {{ type filter hook output priority 0; tcp flags rst accept; {which} reject with tcp reset; }}"


@asynccontextmanager
async def _rules(here: Place, *chains: str) -> AsyncIterator[None]:
    await here.run("nft", "-f", "-", stdin="\n".join(("table ip cuts {", *chains, "}\n")))
    try:
        yield
    finally:
        # Its chains stay, empty: without a nat chain the kernel breaks off the redirected connections.
        await here.run("nft", "flush", "table", "ip", "cuts")


async def callers_of(place: Place, port: int) -> set[str]:
    """Return the hosts with an open connection to this port."""
    lines = (await place.run("ss", "-Htn", "state", "established", f"sport = :{port}")).splitlines()
    return {line.split()[-1].rpartition(":")[0].removeprefix("[::ffff:").rstrip("]") for line in lines}
