"""What the buttons of the demo's page do: kill, freeze, cut off and switch over, each to the group's master as it is then."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.demo.faults import hold
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import Resource
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from brokergroup_operator.demo.scenario import Scenario
    from brokergroup_operator.kube import KubernetesApi

FROZEN_SECONDS: Final = 20.0
CUT_SECONDS: Final = 20.0
_NFT_SECONDS: Final = 5.0
_TABLE: Final = "brokergroup_demo"
_OPERATIONS: Final = Resource("brokergroup.dev", "v1alpha1", "brokergroupoperations", "BrokerGroupOperation")


@dataclass(slots=True)
class Strikes:
    """``strike`` does one of ``state()["strikes"]`` and returns why it did not, or the empty text."""

    scenario: Scenario
    api: KubernetesApi
    incident_log: Path
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _first_acks: dict[str, float] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """What the page shows beside the group."""
        ledger = self.scenario.ledger
        return {
            "doing": self.scenario.doing,
            "group": f"{self.scenario.group.namespace}/{self.scenario.group.name}",
            "acknowledged": len(ledger.acknowledgements),
            "failed": ledger.failures,
            "perSecond": ledger.rate_per_second(time.time()),
            "firstAcknowledged": self._first_acknowledged(),
            "strikes": [
                {"name": name, "label": label, "whyNot": self._why_not(name)} for name, label in _LABELS.items()
            ],
        }

    async def strike(self, name: str) -> str:
        """Do it."""
        if name not in _LABELS:
            return f"strike {name!r}: expected one of {', '.join(_LABELS)}"
        if why_not := self._why_not(name):
            return why_not
        does: dict[str, Callable[[], Awaitable[str]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut": self._cut,
            "switchover": self._switch_over,
        }
        return await does[name]()

    async def stop(self) -> None:
        """Let go of what is still frozen or cut off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _why_not(self, name: str) -> str:
        if not self.scenario.is_played:
            return "the demo strikes by itself first"
        if self.scenario.group.master_id is None:
            return "there is no master"
        if name == "cut" and (os.geteuid() != 0 or shutil.which("nft") is None):
            return "cutting a network off needs root and nft"
        return ""

    def _master_pid(self) -> int | None:
        return self.scenario.container_pid(f"{self.scenario.group.name}-{self.scenario.group.master_id}")

    async def _kill(self) -> str:
        pid = self._master_pid()
        if pid is None:
            return "the master has no process now"
        with suppress(ProcessLookupError), hold(pid) as held:
            held.kill()
        return ""

    async def _freeze(self) -> str:
        pid = self._master_pid()
        if pid is None:
            return "the master has no process now"
        self._later(self._frozen(pid))
        return ""

    async def _frozen(self, pid: int) -> None:
        with suppress(ProcessLookupError), hold(pid) as held:
            held.freeze()
            try:
                await asyncio.sleep(FROZEN_SECONDS)
            finally:
                held.thaw()

    async def _cut(self) -> str:
        pid, address = self._master_pid(), self.scenario.group.master_address()
        if pid is None or address is None:
            return "the master has no process now"
        host = host_of(address)
        rules = (
            f"table ip {_TABLE} {{\n"
            f" chain out {{ type filter hook output priority 0; ip daddr {host} drop; ip saddr {host} drop;\n }}\n"
            f" chain in {{ type filter hook input priority 0; ip daddr {host} drop; ip saddr {host} drop;\n }}\n}}\n"
        )
        why_not = await _nft(pid, rules)
        if not why_not:
            self._later(self._heal(pid))
        return why_not

    async def _heal(self, pid: int) -> None:
        try:
            await asyncio.sleep(CUT_SECONDS)
        finally:
            await _nft(pid, f"delete table ip {_TABLE}\n")

    async def _switch_over(self) -> str:
        group = self.scenario.group
        operation = {
            "apiVersion": _OPERATIONS.api_version,
            "kind": _OPERATIONS.kind,
            "metadata": {"generateName": f"{group.name}-switchover-", "namespace": group.namespace},
            "spec": {
                "brokerGroupRef": {"name": group.name},
                "type": "Switchover",
                "switchover": {"deadlineSeconds": 60},
                "ttlSecondsAfterFinished": 600,
            },
        }
        try:
            await self.api.create(_OPERATIONS, operation)
        except ApiError as error:
            return str(error)
        return ""

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _first_acknowledged(self) -> dict[str, float]:
        """By incident, in milliseconds since it was detected: the first write that the demo's client saw acknowledged after it."""
        for incident in _incidents(self.incident_log):
            committed = (incident.get("stepsMilliseconds") or {}).get("committed")
            if committed is None or incident["id"] in self._first_acks:
                continue
            started = dt.datetime.fromisoformat(incident["startedAt"]).timestamp()
            first = self.scenario.ledger.first_after(started + committed / 1000)
            if first is not None:
                self._first_acks[incident["id"]] = round((first.at_seconds - started) * 1000, 1)
        return self._first_acks


_LABELS: Final = {
    "kill": "Kill the master",
    "freeze": "Freeze the master",
    "cut": "Cut the master off",
    "switchover": "Switch over",
}


def _incidents(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    found = []
    for line in log.read_text().splitlines():
        with suppress(ValueError):  # a line that is being written
            found.append(json.loads(line))
    return found


async def _nft(pid: int, rules: str) -> str:
    """In the network namespace of a process; on loopback addresses that is the machine's own. Why it failed, or nothing."""
    process = await asyncio.create_subprocess_exec(
        *("nsenter", f"--net=/proc/{pid}/ns/net", "--", "nft", "-f", "-"),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_NFT_SECONDS):
            _, errors = await process.communicate(rules.encode())
    except TimeoutError:
        process.kill()
        return "nft does not end"
    return errors.decode() if process.returncode else ""
