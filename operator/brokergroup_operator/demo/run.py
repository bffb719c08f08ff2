"""The whole demo: sandbox, operator, the group's manifest, a producer; then the scenario; then the verdict.

The verdict is one JSON object: every failover with its steps, how many sends were acknowledged, and how many of those the final
master's log does not hold.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from brokergroup_operator.demo.client import DemoProducer, JavaProducer, Ledger, read_keys
from brokergroup_operator.demo.our_sandbox import start_name_server
from brokergroup_operator.demo.page import DemoPage, Strikes
from brokergroup_operator.demo.preparation import SANDBOX, DemoManifestError
from brokergroup_operator.demo.processes import DemoProcesses, free_port
from brokergroup_operator.demo.scenario import DemoTimeoutError, Scenario
from brokergroup_operator.demo.scraper import scraping
from brokergroup_operator.demo.screen import Screen
from brokergroup_operator.demo.watched_group import WatchedGroup, watch_group
from brokergroup_operator.kube import ApiError, ApiUnavailableError, KubernetesApi, OutcomeUnknownError
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES
from kube_sandbox.kubelet.files import read_container_pid
from kube_sandbox.kubelet.process import kill_leftovers

_NAMESPACE = "default"
_TOPIC = "demo"
_QUEUES = 4
# The deadline of each step of the start: on a machine with a load of ten per core an operator imports for most of a minute.
_START_SECONDS = 120.0
# The deadline of a wait in the scenario. A Java broker takes 4 to 25 s to open its port on two busy cores.
_PYTHON_SECONDS = 40.0
_JAVA_SECONDS = 120.0
_FIELD_MANAGER = "brokergroup-demo"


class Producer(Protocol):
    """Sends until `stop`."""

    async def run(self, stop: asyncio.Event) -> None: ...


@dataclass(frozen=True)
class DemoSettings:
    """Python replicas on loopback addresses, or with `rocketmq_home` Java brokers.

    Its lib/ holds RocketMQ's jars; the brokers run in network namespaces, beside a NameServer pod and the Java producer.
    """

    directory: Path
    lock_descriptor: int
    manifest: dict[str, Any]
    once: bool
    rocketmq_home: Path | None = None
    name_server_manifest: Path = Path("examples/nameserver.yaml")
    # The least time without a fault before each fault, and at the end.
    pace_seconds: float = 2.0
    thaw_after_seconds: float = 1.0
    page_port: int = field(default_factory=free_port)

    @property
    def page_address(self) -> str:
        return f"http://127.0.0.1:{self.page_port}/"

    @property
    def export(self) -> Path:
        """The operator's metrics of the whole run, for `make sla-report`."""
        return self.directory / "prometheus.json"

    @property
    def incident_log(self) -> Path:
        """The operator's incidents, for `make sla-report`."""
        return self.directory / "incidents.jsonl"


@dataclass(frozen=True)
class DemoResult:
    """The verdict; `holds`: whether every failover completed and nothing acknowledged was lost."""

    document: dict[str, Any]
    holds: bool


async def run_demo(settings: DemoSettings, stop: asyncio.Event) -> DemoResult:
    """Play the whole demo. DemoStoppedError at `stop` before the verdict.

    Raises DemoTimeoutError, DemoProcessError, DemoManifestError or ReadbackError if it cannot go on.
    """
    processes = DemoProcesses(settings.directory / "logs", settings.lock_descriptor)
    page = DemoPage(f"127.0.0.1:{free_port()}")
    try:
        await page.start("127.0.0.1", settings.page_port)
        name_server = f"127.0.0.1:{free_port()}"
        kubeconfig = await _start_sandbox(processes, settings, name_server)
        async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
            endpoints = await _start_operator(processes, settings, kubeconfig, await _node_address(api), page)
            manifest = settings.manifest
            manifest["metadata"]["namespace"] = _NAMESPACE
            if settings.rocketmq_home is not None:
                name_server = await start_name_server(api, settings.name_server_manifest, processes)
            watched_by_clients(manifest, name_server)
            await _apply(api, manifest, processes)
            return await _play(settings, processes, api, manifest, endpoints, page, stop)
    finally:
        await page.stop()
        await processes.stop()
        # A sandbox that had to be killed leaves its brokers.
        await asyncio.to_thread(kill_leftovers, settings.directory / SANDBOX)


def watched_by_clients(manifest: dict[str, Any], name_server: str) -> None:
    """Give the group its NameServer and the canary: with it the step `firstAck`, in every view, is what a client saw."""
    spec = manifest["spec"]
    spec["nameServers"] = [name_server]
    spec["monitoring"] = {"canary": {"enabled": True}, **(spec.get("monitoring") or {})}


async def _start_sandbox(processes: DemoProcesses, settings: DemoSettings, name_server: str) -> Path:
    kubeconfig, data = settings.directory / "kubeconfig", settings.directory / SANDBOX
    # Java brokers have a real NameServer; for Python replicas the sandbox serves routes.
    network = ("loopback", "--name-server", name_server) if settings.rocketmq_home is None else ("netns",)
    await processes.start(
        *("sandbox", "sandbox", "--data-dir", str(data), "--kubeconfig", str(kubeconfig), "--network", *network)
    )
    await _within_start("the sandbox has not written its kubeconfig", processes, kubeconfig.exists)
    return kubeconfig


async def _node_address(api: KubernetesApi) -> str:
    """Return the node's own address, at which pods reach processes outside of pods."""
    nodes = await api.list(NODES)
    addresses = {entry["type"]: entry["address"] for node in nodes.items for entry in node["status"]["addresses"]}
    return str(addresses["InternalIP"])


async def _start_operator(
    processes: DemoProcesses, settings: DemoSettings, kubeconfig: Path, host: str, page: DemoPage
) -> Mapping[str, str]:
    # The file is for tools outside: a Prometheus, mqadmin.
    endpoints = {
        "controller": f"{host}:{free_port(host)}",
        "metrics": f"127.0.0.1:{free_port()}",
        "page": settings.page_address,
        "kubeconfig": str(kubeconfig),
    }
    (settings.directory / "endpoints.json").write_text(json.dumps(endpoints))
    await processes.start(
        "operator", "operator",
        "--kubeconfig", str(kubeconfig), "--namespace", _NAMESPACE,
        "--listen", endpoints["controller"], "--controller-address", endpoints["controller"],
        "--metrics-listen", endpoints["metrics"],
        "--incident-log", str(settings.incident_log),
        "--page-listen", page.operator_page,
    )  # fmt: skip
    return endpoints


async def _play(
    settings: DemoSettings,
    processes: DemoProcesses,
    api: KubernetesApi,
    manifest: dict[str, Any],
    endpoints: Mapping[str, str],
    page: DemoPage,
    stop: asyncio.Event,
) -> DemoResult:
    name = manifest["metadata"]["name"]
    async with watch_group(api, _NAMESPACE, name) as group:
        ledger = Ledger()
        with Screen(hints=_hints(name, endpoints, manifest["spec"]["nameServers"][0])) as screen:
            scenario = Scenario(
                group=group,
                ledger=ledger,
                processes=processes,
                incident_log=settings.incident_log,
                container_pid=lambda pod: read_container_pid(settings.directory / SANDBOX, _NAMESPACE, pod, "broker"),
                screen=screen,
                stop=stop,
                deadline_seconds=_PYTHON_SECONDS if settings.rocketmq_home is None else _JAVA_SECONDS,
            )
            page.strikes = strikes = Strikes(scenario, api, settings.incident_log)
            replicas = int(manifest["spec"].get("replicas", 3))
            await scenario.until_ready(replicas, _START_SECONDS)
            # Scraping begins once the group takes writes: its start is no outage.
            async with (
                scraping(endpoints["metrics"], settings.export),
                _producing(_producer(settings, group, manifest, ledger)),
            ):
                await _strike(scenario, settings, replicas)
                await strikes.stop()
            result = await _verify(scenario, replicas)
            screen.close_with(scenario.view())
            return result


async def _apply(api: KubernetesApi, manifest: dict[str, Any], processes: DemoProcesses) -> None:
    """Apply the manifest, again after a timeout: on a busy machine the first answers come late."""

    async def applied() -> bool:
        try:
            await api.apply(BROKER_GROUPS, manifest, field_manager=_FIELD_MANAGER)
        except (ApiUnavailableError, OutcomeUnknownError):
            return False
        except ApiError as error:
            raise DemoManifestError(f"the API refuses the group: {error}") from error
        return True

    await _within_start("the API has not taken the group", processes, applied)


async def _within_start(complaint: str, processes: DemoProcesses, done: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until `done`. DemoTimeoutError with the complaint; DemoProcessError if a process ended meanwhile."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        answer = done()
        if answer if isinstance(answer, bool) else await answer:
            return
        processes.check()
        if time.monotonic() > deadline:
            raise DemoTimeoutError(f"{complaint} within {_START_SECONDS:.0f} s; look into {processes.log_directory}")
        await asyncio.sleep(0.05)


def _producer(settings: DemoSettings, group: WatchedGroup, manifest: dict[str, Any], ledger: Ledger) -> Producer:
    if settings.rocketmq_home is None:
        broker_name = manifest["spec"].get("brokerName", manifest["metadata"]["name"])
        return DemoProducer(route=group.master_address, broker_name=broker_name, topic=_TOPIC, ledger=ledger)
    return JavaProducer(
        rocketmq_home=settings.rocketmq_home,
        name_server=manifest["spec"]["nameServers"][0],
        topic=_TOPIC,
        log_path=settings.directory / "logs" / "producer.log",
        ledger=ledger,
    )


@asynccontextmanager
async def _producing(producer: Producer) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(producer.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _strike(scenario: Scenario, settings: DemoSettings, replicas: int) -> None:
    await scenario.send_for_a_while(settings.pace_seconds)
    await scenario.kill_master()
    await scenario.until_ready(replicas)
    await scenario.send_for_a_while(settings.pace_seconds)
    await scenario.freeze_master(settings.thaw_after_seconds)
    await scenario.until_ready(replicas)
    await scenario.send_for_a_while(settings.pace_seconds)
    if not settings.once:
        scenario.doing = "done; the group goes on: look at it with kubectl, Ctrl-C ends and counts"
        await scenario.watch_until_stopped()


async def _verify(scenario: Scenario, replicas: int) -> DemoResult:
    await scenario.until_ready(replicas)
    scenario.doing = "reading the final master's log back"
    address = scenario.group.master_address()
    keys = await read_keys(address, _TOPIC, _QUEUES) if address else set()
    lost = scenario.ledger.missing_from(keys)
    scenario.doing = f"{len(scenario.ledger.acknowledgements)} acknowledged, {len(lost)} lost"
    document = {
        "failovers": [failover.as_json() for failover in scenario.failovers],
        "acked": len(scenario.ledger.acknowledgements),
        "lost": len(lost),
        "final_master": scenario.group.master_id,
        "epochs": scenario.epochs,
    }
    completed = len(scenario.failovers) == 2 and all(failover.completed for failover in scenario.failovers)
    return DemoResult(document, holds=completed and not lost and bool(keys))


def _hints(name: str, endpoints: Mapping[str, str], name_server: str) -> list[str]:
    return [
        f"the page: {endpoints['page']}",
        f"export KUBECONFIG={endpoints['kubeconfig']}",
        "kubectl get brokergroups,pods -w",
        f"kubectl describe brokergroup {name}",
        f"PATH=.venv/bin:$PATH kubectl brokergroup status {name}",
        f"any RocketMQ client, with the NameServer {name_server}; the topic is {_TOPIC}",
        f"curl -s http://{endpoints['metrics']}/metrics | grep ^brokergroup_",
    ]
