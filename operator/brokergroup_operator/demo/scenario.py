"""The story of the demo: a group comes up, takes messages, loses its master to a kill, then the next one to a freeze.

Everything is observed from outside (the API, the incident log, the producer's own ledger); nothing here has a hand in the
failovers. Every wait has a deadline and says what it waited for.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokergroup_operator.demo.faults import HeldProcess, hold
from brokergroup_operator.demo.incident_reader import DemoFailover, find_incident, steps_since
from brokergroup_operator.demo.ledger import Ledger
from brokergroup_operator.demo.processes import DemoProcesses
from brokergroup_operator.demo.screen import DemoView, FailoverRow, Screen
from brokergroup_operator.demo.watched_group import WatchedGroup

_POLL_SECONDS = 0.02
_WARM_UP_ACKNOWLEDGEMENTS = 100
# Nobody watches longer than a day.
_WATCH_SECONDS = 86_400.0


class DemoTimeoutError(Exception):
    """Something the demo waited for did not happen; names it, and what was seen instead."""


class DemoStoppedError(Exception):
    """Somebody asked the demo to end before its story was told."""


@dataclass
class Scenario:
    """The demo's steps over a running environment. `stop` ends it at any wait, save when only the read-back is left."""

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
    # Whether the scripted part is over, so that whoever watches may strike.
    is_played: bool = False

    async def until_ready(self, replicas: int, seconds: float | None = None) -> None:
        """Wait until the group is Ready with all its members in the SyncStateSet; `seconds` in place of the usual deadline."""
        self.doing = f"waiting for {replicas} members in sync"
        await self._wait(lambda: self.group.is_ready() and len(self.group.sync_state_set) == replicas, seconds)
        self._note_epoch()

    async def send_for_a_while(self, seconds: float, count: int = _WARM_UP_ACKNOWLEDGEMENTS) -> None:
        """Wait until `count` more messages are acknowledged, and for so long at least."""
        self.doing = "sending messages"
        target, until = len(self.ledger.acknowledgements) + count, time.monotonic() + seconds
        await self._wait(lambda: len(self.ledger.acknowledgements) >= target and time.monotonic() >= until)

    async def kill_master(self) -> None:
        """SIGKILL the master and wait for the failover to end."""
        with self._hold_master() as (held, broker_id):
            fault_at = time.time()
            held.kill()
            await self._until_failed_over(f"SIGKILL of {broker_id}", broker_id, fault_at)

    async def freeze_master(self, thaw_after_seconds: float) -> None:
        """SIGSTOP the master, wait for the failover to end, and let it run on if it still exists.

        A fenced master is dead by then. One that was not fenced wakes with its sockets full: the read-back at the end shows
        whether it acknowledged anything that is gone.
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
        """Go on showing the group until somebody asks to end; what follows is only the verdict."""
        self.is_played = True
        with suppress(DemoTimeoutError):
            await self._wait(self.stop.is_set, _WATCH_SECONDS)
        self.is_played = False
        self.stop = asyncio.Event()

    async def _wait(self, condition: Callable[[], Any], seconds: float | None = None) -> Any:
        """The first true value of `condition`; raises DemoTimeoutError at the deadline, DemoProcessError when a process ends."""
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
        """What to show now."""
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
