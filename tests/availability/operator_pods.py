"""Operator pods as in a cluster: several processes, each an active controller at its own address, with one Lease.

Each reaches the API through its own proxy, and brokers reach it through its own gate, so a test can silently cut either.
The proxies run in one process: their log is the API's request log, with one clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import SERVICES
from tests.e2e.api_proxy import ApiProxy, Passed
from tests.e2e.house import NAMESPACE, WholeGroup, eventually, kubeconfig_for
from tests.fence.gate import Gate

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Sequence

    from brokergroup_operator.demo.processes import ChildProcess
    from tests.e2e.house import House

OF_THE_RECONCILE_PLANE = {names.FIELD_MANAGER_RECONCILE, names.FIELD_MANAGER_STATUS, names.FIELD_MANAGER_ROLE}
LEASE = "brokergroup-operator"


@dataclass
class OperatorPod:
    """One operator process, its proxy to the API, and the gate in front of it."""

    name: str
    house: House
    proxy: ApiProxy
    gate: Gate
    address: str
    listen: str
    token: str
    lease_namespace: str
    child: ChildProcess | None = None

    @property
    def log(self) -> str:
        return (self.house.folder / "logs" / f"{self.name}.log").read_text()

    async def start(self, addresses: Sequence[str]) -> None:
        kubeconfig = kubeconfig_for(self.proxy.url, self.house.folder / f"kubeconfig-{self.name}", token=self.token)
        known: list[str] = []
        for address in addresses:
            known += ["--controller-address", address]
        self.child = await self.house.processes.start(
            self.name, "operator", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE,
            "--listen", self.listen, "--advertise", self.address, *known,
            "--leader-election-namespace", self.lease_namespace, "--identity", self.name,
            "--incident-log", str(self.house.folder / f"{self.name}-incidents.jsonl"),
        )  # fmt: skip

    async def kill(self) -> float:
        """Send SIGKILL; return the time in monotonic seconds."""
        assert self.child is not None
        at_seconds = time.monotonic()
        await self.house.kill_operator(self.child)
        return at_seconds

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    @property
    def _pid(self) -> int:
        assert self.child is not None
        return self.child.process.pid

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.process.returncode is None

    def reconcile_writes(self, since_seconds: float = 0.0) -> list[Passed]:
        """Return its reconcile plane's writes that the API accepted."""
        return [
            item
            for item in self.proxy.passed
            if item.write.field_manager in OF_THE_RECONCILE_PLANE and item.sent_seconds >= since_seconds
        ]


@dataclass
class OperatorPods:
    """All operator pods, in the order of their names."""

    house: House
    pods: list[OperatorPod] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        return [pod.address for pod in self.pods]

    async def start(self, pod: OperatorPod) -> None:
        await pod.start(self.addresses)

    def leader(self) -> OperatorPod | None:
        """Return the pod that last wrote itself into the Lease."""
        terms = self._terms()
        return next((pod for pod in self.pods if terms and pod.name == terms[-1][1]), None)

    async def until_led(self) -> OperatorPod:
        """Return the leader once it runs and is connected."""

        def found() -> OperatorPod | None:
            pod = self.leader()
            return pod if pod is not None and pod.runs else None

        led: OperatorPod = await eventually(found, lambda: f"no leader: {self._terms()[-3:]}")
        return led

    def followers(self) -> list[OperatorPod]:
        leader = self.leader()
        return [pod for pod in self.pods if pod is not leader and pod.runs]

    async def until_all_live(self, group: WholeGroup) -> OperatorPod:
        """Wait until all pods run, one leads, and the group is settled."""
        for pod in self.pods:
            if not pod.runs:
                await self.start(pod)
        leader = await self.until_led()
        await group.until_settled()
        return leader

    def _terms(self) -> list[tuple[float, str]]:
        """Return (start, holder) of each answered write of the Lease; an empty name for no holder."""
        found = []
        for pod in self.pods:
            for item in pod.proxy.passed:
                if item.write.kind != "leases" or item.status >= 300 or not isinstance(item.write.body, dict):
                    continue
                holder = str(item.write.body["spec"].get("holderIdentity") or "")
                found.append((item.answered_seconds, holder.partition("_")[0]))
        return sorted(found)

    def writes_without_the_lease(self) -> list[str]:
        """Return each write of a reconcile plane that reached the API while that pod did not hold the Lease."""
        terms = self._terms()
        broken = []
        for pod in self.pods:
            for item in pod.reconcile_writes():
                before = [holder for from_seconds, holder in terms if from_seconds <= item.sent_seconds]
                holder = before[-1] if before else "no pod"
                if holder != pod.name:
                    broken.append(
                        f"{pod.name} wrote {item.write.method} {item.write.path} while {holder} held the Lease"
                    )
        return broken

    async def takeover(
        self, scenario: str, struck: OperatorPod, since_seconds: float, group: WholeGroup
    ) -> OperatorPod:
        """Delete a Service that only a reconcile plane repairs; return the pod that repairs it first, and print the time."""
        await self.house.api.delete(SERVICES, names.master_service_name(group.name), namespace=NAMESPACE)

        def successor() -> tuple[OperatorPod, Passed] | None:
            writes = [
                (pod, item)
                for pod in self.pods
                if pod is not struck
                for item in pod.reconcile_writes(since_seconds)
                if item.write.kind == "services" and item.status < 300
            ]
            return min(writes, key=lambda found: found[1].sent_seconds, default=None)

        pod: OperatorPod
        pod, _ = await eventually(successor, lambda: f"no pod repaired the Service\n{group.story()}")
        first = min(item.sent_seconds for item in pod.reconcile_writes(since_seconds))
        print(json.dumps({"scenario": scenario, "takeover_seconds": round(first - since_seconds, 3)}))
        return pod


@asynccontextmanager
async def operator_pods(
    house: House,
    count: int = 3,
    *,
    tls: ssl.SSLContext | None = None,
    token: str = "",
    lease_namespace: str = NAMESPACE,
    api_url: str = "",
    release: str = "operator",
) -> AsyncIterator[OperatorPods]:
    """Start this many pods."""
    async with AsyncExitStack() as stack:
        pods = OperatorPods(house)
        for ordinal in range(count):
            name = f"{release}-{ordinal}"
            proxy = await stack.enter_async_context(ApiProxy(api_url or house.api.url, tls=tls).running())
            gate, listen = Gate(), house.controller_address(name)
            address = (await gate.start(f"tcp://{listen}")).removeprefix("tcp://")
            stack.push_async_callback(gate.close)
            pods.pods.append(OperatorPod(name, house, proxy, gate, address, listen, token, lease_namespace))
        stack.push_async_callback(_kill_all, pods)
        await asyncio.gather(*(pods.start(pod) for pod in pods.pods))
        yield pods


async def _kill_all(pods: OperatorPods) -> None:
    """Kill all operators before the proxies end: one that waits for a proxy would block that proxy's end."""
    for pod in pods.pods:
        pod.proxy.heal()
        if pod.runs:
            await pod.kill()


def masters_lost(pods: OperatorPods) -> list[dict[str, Any]]:
    """Return the lost masters in all incident logs."""
    return [incident for pod in pods.pods for incident in pods.house.incidents(pod.name)]
