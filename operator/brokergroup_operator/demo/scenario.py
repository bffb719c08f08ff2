"""The demo's steps: a group starts, takes messages, loses its master to SIGKILL, and the next one to SIGSTOP.

Everything is observed from outside (the API, the incident log, the producer's ledger); nothing here takes part in a failover.
Every wait has a deadline and names what it waited for.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokergroup_operator.demo.client import Ledger
from brokergroup_operator.demo.processes import DemoProcesses, HeldProcess, hold
from brokergroup_operator.demo.screen import DemoView, FailoverRow, Screen
from brokergroup_operator.demo.watched_group import DemoFailover, WatchedGroup, find_incident, steps_since

_POLL_SECONDS = 0.02
_WARM_UP_ACKNOWLEDGEMENTS = 100
# The longest time until Ctrl-C.
_WATCH_SECONDS = 86_400.0


class DemoTimeoutError(Exception):
    """A wait ended at its deadline; names what was waited for, and what was seen instead."""


class DemoStoppedError(Exception):
    """The demo was stopped before its verdict."""


@dataclass
class Scenario:
    """The demo's steps. `stop` ends any wait, except those of the read-back at the end."""

    group: WatchedGroup
    ledger: Ledger
    processes: DemoProcesses
    incident_log: Path
    container_pid: Callable[[str], int | None]
    screen: Screen
    stop: asyncio.Event
    deadline_seconds: float = 40.0
    failovers: list[DemoFailover] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    doing: str = ""
    # Whether the scripted part is over: from then on the page's buttons strike.
    is_played: bool = False

    async def until_ready(self, replicas: int, seconds: float | None = None) -> None:
        """Wait until the group is Ready with all members in the SyncStateSet; `seconds` replaces the usual deadline."""
        self.doing = f"waiting for {replicas} members in sync"
        await self._wait(lambda: self.group.is_ready() and len(self.group.sync_state_set) == replicas, seconds)
        self._note_epoch()

    async def send_for_a_while(self, seconds: float, count: int = _WARM_UP_ACKNOWLEDGEMENTS) -> None:
        """Wait until `count` more messages are acknowledged, and for `seconds` at least."""
        self.doing = "sending messages"
        target, until = len(self.ledger.acknowledgements) + count, time.monotonic() + seconds
        await self._wait(lambda: len(self.ledger.acknowledgements) >= target and time.monotonic() >= until)

    async def kill_master(self) -> None:
        """SIGKILL the master and wait for the end of the failover."""
        with self._hold_master() as (held, broker_id):
            fault_at = time.time()
            held.kill()
            await self._until_failed_over(f"SIGKILL of {broker_id}", broker_id, fault_at)

    async def freeze_master(self, thaw_after_seconds: float) -> None:
        """SIGSTOP the master, wait for the end of the failover, and SIGCONT it unless it was fenced.

        A master that was not fenced wakes with full sockets: the read-back shows whether it acknowledged anything that is lost.
        """
        with self._hold_master() as (held, broker_id):
            fault_at = time.time()
            held.freeze()
            await self._until_failed_over(f"SIGSTOP of {broker_id}", broker_id, fault_at)
            await asyncio.sleep(thaw_after_seconds)
            self.doing = "thawed: it was alive" if held.thaw() else "the frozen process is dead: fenced"

    @contextmanager
    def _hold_master(self) -> Iterator[tuple[HeldProcess, int]]:
        broker_id = self.group.master_id
        if broker_id is None:
            raise DemoTimeoutError(f"no master to strike; the record is {self.group.record}")
        pid = self.container_pid(f"{self.group.name}-{broker_id}")
        if pid is None:
            raise DemoTimeoutError(f"the kubelet runs no container for pod {self.group.name}-{broker_id}")
        with hold(pid) as held:
            yield held, broker_id

    async def _until_failed_over(self, fault: str, broker_id: int, fault_at_seconds: float) -> None:
        self.doing = f"{fault}: failing over"
        epoch_before = self.epochs[-1]
        incident = await self._wait(
            lambda: find_incident(self.incident_log, from_broker_id=broker_id, epoch_before=epoch_before)
        )
        steps = steps_since(incident, fault_at_seconds)
        committed_at = fault_at_seconds + steps.get("committed", 0.0) / 1000
        first = await self._wait(lambda: self.ledger.first_after(committed_at))
        steps["first_ack"] = round((first.at_seconds - fault_at_seconds) * 1000, 1)
        self.failovers.append(
            DemoFailover(
                fault=fault,
                trigger=incident["trigger"],
                from_broker_id=broker_id,
                to_broker_id=incident.get("to"),
                epoch=incident.get("epoch"),
                outcome=incident["outcome"],
                unfenced=incident["unfenced"],
                steps_ms=dict(sorted(steps.items(), key=lambda step: step[1])),
            )
        )

    async def watch_until_stopped(self) -> None:
        """Show the group until `stop`; only the verdict follows."""
        self.is_played = True
        with suppress(DemoTimeoutError):
            await self._wait(self.stop.is_set, _WATCH_SECONDS)
        self.is_played = False
        self.stop = asyncio.Event()

    async def _wait(self, condition: Callable[[], Any], seconds: float | None = None) -> Any:
        """Return the first true value of `condition`. DemoTimeoutError at the deadline, DemoProcessError if a process ended."""
        seconds = self.deadline_seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if self.stop.is_set():
                raise DemoStoppedError(self.doing)
            self.processes.check()
            self.screen.show(self.view())
            if time.monotonic() > deadline:
                raise DemoTimeoutError(f"{self.doing}: not within {seconds:.0f} s; {self._seen()}")
            await asyncio.sleep(_POLL_SECONDS)
        return value

    def view(self) -> DemoView:
        """Return what to show now."""
        return DemoView(
            members=self.group.members(),
            master_epoch=self.group.master_epoch,
            sync_state_set=self.group.sync_state_set,
            acknowledged=len(self.ledger.acknowledgements),
            per_second=self.ledger.rate_per_second(time.time()),
            failovers=[FailoverRow(failover.fault, list(failover.steps_ms.items())) for failover in self.failovers],
            doing=self.doing,
        )

    def _note_epoch(self) -> None:
        if not self.epochs or self.epochs[-1] != self.group.master_epoch:
            self.epochs.append(self.group.master_epoch)

    def _seen(self) -> str:
        return f"record {self.group.record}, conditions {self.group.status.get('conditions', [])}"
