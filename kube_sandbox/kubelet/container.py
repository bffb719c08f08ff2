"""One container of a pod: start it, probe it, start it again with back-off, stop it.

As Kubernetes does: ``restartPolicy`` decides whether an ended container starts again, the delay doubles from start to start up
to a bound and is reset once the container ran long enough, and ``lastState`` keeps the end of the last start. Probes have
Kubernetes' fields and defaults; readiness starts as failed, liveness as passed.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
import structlog

from kube_sandbox.client import ApiError, netloc
from kube_sandbox.kubelet.environment import NotReadyYetError, UnknownImageError
from kube_sandbox.kubelet.process import CONTAINER_MARK, ContainerProcess, Exit, ProcessSpec
from kube_sandbox.kubelet.status import running, terminated, waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kube_sandbox.client import JsonObject


log = structlog.get_logger(__name__)

KILLED_EXIT_CODE = 137
# What container engines report for a program that could not be started.
START_ERROR_EXIT_CODE = 128


@dataclass(frozen=True, slots=True)
class BackOffSettings:
    """The delay before an ended container starts again."""

    first_seconds: float = 0.5
    last_seconds: float = 30.0
    reset_after_seconds: float = 60.0


class ContainerHost(Protocol):
    """What a container needs of its pod; ``PodWorker`` has it."""

    def container_spec(self, name: str) -> JsonObject: ...
    async def prepare(self, name: str, restart_count: int) -> ProcessSpec: ...
    def probe_target(self, name: str, spec: ProcessSpec) -> ProbeTarget: ...
    def termination_message(self, name: str) -> str: ...
    def changed(self) -> None: ...
    def event(self, kind: str, reason: str, message: str) -> None: ...


class Container:
    """Run ``run()`` as a task; it ends when the container is not started again, or after ``stop()``."""

    def __init__(
        self,
        name: str,
        host: ContainerHost,
        *,
        restart_policy: str,
        back_off: BackOffSettings,
        earlier: JsonObject | None = None,
    ) -> None:
        self.name = name
        self.process: ContainerProcess | None = None
        # When the process got SIGTERM, on the loop's clock.
        self.asked_to_end_seconds: float | None = None
        self._host = host
        self._restart_policy = restart_policy
        self._back_off = back_off
        self._stop = asyncio.Event()
        # ContainerState objects; the last one only of a start that ended.
        self._state, self._last_state = waiting("ContainerCreating"), cast("JsonObject", {})
        self._restart_count = 0
        self._ready = False
        self._started = False
        self._container_id = ""
        self._spec: ProcessSpec | None = None
        if earlier is not None:
            # The report of an earlier kubelet: the loss of its process counts as an end.
            state = earlier.get("state") or {}
            self._restart_count = int(earlier.get("restartCount") or 0)
            self._last_state = earlier.get("lastState") or {}
            if "running" in state or "terminated" in state:
                self._restart_count += 1
                self._last_state = state if "terminated" in state else _lost_state()

    @property
    def report(self) -> JsonObject:
        """The container's ContainerStatus."""
        return {
            "name": self.name,
            "image": str(self._host.container_spec(self.name).get("image", "")),
            "imageID": "",
            "state": self._state,
            "lastState": self._last_state,
            "restartCount": self._restart_count,
            "ready": self._ready,
            "started": self._started,
        } | ({"containerID": self._container_id} if self._container_id else {})

    async def run(self) -> Exit | None:
        """Start the container until it is stopped or done; None if it was stopped before its first start."""
        loop = asyncio.get_running_loop()
        delay_seconds = self._back_off.first_seconds
        while True:
            spec = await self._prepared()
            if spec is None:
                return None
            started = loop.time()
            exit_ = await self._run_once(spec)
            is_done = self._restart_policy == "Never" or (self._restart_policy == "OnFailure" and exit_.code == 0)
            if self._stop.is_set() or is_done:
                return exit_
            if loop.time() - started >= self._back_off.reset_after_seconds:
                delay_seconds = self._back_off.first_seconds
            await self._wait_before_restart(delay_seconds)
            delay_seconds = min(delay_seconds * 2, self._back_off.last_seconds)
            if not self._stop.is_set():
                if "terminated" in self._state:
                    self._last_state = self._state
                self._state = waiting("ContainerCreating")
                self._restart_count += 1

    async def _prepared(self) -> ProcessSpec | None:
        """Wait until everything that the container needs is there; None if it is stopped before."""
        delay_seconds = self._back_off.first_seconds
        while not self._stop.is_set():
            try:
                return await self._host.prepare(self.name, self._restart_count)
            except NotReadyYetError as error:
                self._wait_for(error.reason, str(error))
            except UnknownImageError as error:
                known = self._state.get("waiting", {}).get("reason", "").endswith(("ImagePull", "BackOff"))
                self._wait_for("ImagePullBackOff" if known else "ErrImagePull", str(error))
            except ApiError as error:
                log.warning("container waits for the API", container=self.name, error=str(error))
            await self._pause(delay_seconds)
            delay_seconds = min(delay_seconds * 2, self._back_off.last_seconds)
        return None

    def _wait_for(self, reason: str, message: str) -> None:
        state = waiting(reason, message)
        if state != self._state:
            self._state = state
            self._host.event("Warning", "Failed", message)
            self._host.changed()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _wait_before_restart(self, seconds: float) -> None:
        if self._restart_count > 0 and "terminated" in self._state:
            self._last_state = self._state
            message = f"back-off {seconds:g}s restarting failed container={self.name}"
            self._state = waiting("CrashLoopBackOff", message)
            self._host.event("Warning", "BackOff", message)
            self._host.changed()
        await self._pause(seconds)

    async def _run_once(self, spec: ProcessSpec) -> Exit:
        try:
            process = ContainerProcess.start(spec)
        except OSError as error:
            message, now = f"cannot start {list(spec.arguments)!r}: {error}", datetime.now(UTC)
            self._state = terminated(START_ERROR_EXIT_CODE, "StartError", now, now, message=message)
            self._host.event("Warning", "Failed", message)
            self._host.changed()
            return Exit(START_ERROR_EXIT_CODE, 0, now)
        container = self._host.container_spec(self.name)
        self.process, self._spec = process, spec
        process.on_exit(self._ended)
        self._container_id = f"process://{process.pid}"
        self._state = running(process.started_at)
        self._started = True
        self._ready = "readinessProbe" not in container
        self._host.event("Normal", "Started", f"Started container {self.name}")
        self._host.changed()
        probes = asyncio.create_task(self._probe(container, self._host.probe_target(self.name, spec)))
        try:
            return await process.wait()
        finally:
            probes.cancel()
            with suppress(asyncio.CancelledError):
                await probes

    def _ended(self, exit_: Exit) -> None:
        assert self.process is not None
        reason, more = "Completed" if exit_.code == 0 else "Error", {"containerID": self._container_id}
        more["message"] = self._host.termination_message(self.name)
        began, over = self.process.started_at, exit_.finished_at
        self._state = terminated(exit_.code, reason, began, over, signal=exit_.signal, **more)
        self._ready = self._started = False
        self.process = None
        self._host.changed()

    async def _probe(self, container: JsonObject, target: ProbeTarget) -> None:
        async with asyncio.TaskGroup() as probes:
            for name, passed in (("readinessProbe", False), ("livenessProbe", True)):
                if name in container:
                    changed, errored = partial(self._verdict_changed, name), partial(self._probe_errored, name)
                    probe = run_probe(container[name], target, passed_at_first=passed, changed=changed, errored=errored)
                    probes.create_task(probe)

    def _verdict_changed(self, probe: str, passed: bool) -> None:
        if not passed:
            self._host.event("Warning", "Unhealthy", f"{probe} of {self.name} failed")
        if probe == "readinessProbe":
            self._ready = passed
            self._host.changed()
        elif not passed:
            self.kill()

    def _probe_errored(self, probe: str, error: str) -> None:
        self._host.event("Warning", "Unhealthy", f"{probe} of {self.name} errored: {error}")

    async def stop(self) -> None:
        """Run the preStop hook, then send SIGTERM. The container is not started again."""
        self._stop.set()
        hook = (self._host.container_spec(self.name).get("lifecycle") or {}).get("preStop") or {}
        # The caller's grace period is the hook's deadline.
        if "exec" in hook and self.process is not None and self._spec is not None:
            target = self._host.probe_target(self.name, self._spec)
            await target.run_command(list(hook["exec"]["command"]), None)
        elif "sleep" in hook and self.process is not None:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
        if self.process is not None:
            self._host.event("Normal", "Killing", f"Stopping container {self.name}")
        self.terminate()

    def terminate(self) -> None:
        """Send SIGTERM, once."""
        if self.process is not None and self.asked_to_end_seconds is None:
            self.asked_to_end_seconds = asyncio.get_running_loop().time()
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to all processes of the container."""
        if self.process is not None:
            self.process.kill()

    def never_again(self) -> None:
        """Start no process any more; a running one is not touched."""
        self._stop.set()

    def conclude(self) -> None:
        """Report the container as terminated, because its pod is over."""
        if "waiting" in self._state:
            self._state = self._last_state or _lost_state()
        self._ready = self._started = False


async def run_beside(spec: ProcessSpec, arguments: list[str], *, timeout_seconds: float | None = None) -> bool:
    """Run a command beside a container (probe, preStop); return whether it ended with 0 in time."""
    prefix = list(spec.arguments)[: spec.prefix_length]
    mark = f"{spec.environment[CONTAINER_MARK]}/{uuid.uuid4()}"
    beside = replace(
        spec,
        arguments=[*prefix, *arguments],
        environment={**spec.environment, CONTAINER_MARK: mark},
        log_file=spec.log_file.with_name("exec.log"),
    )
    try:
        process = ContainerProcess.start(beside)
    except OSError:
        return False
    try:
        async with asyncio.timeout(timeout_seconds):
            return (await process.wait()).code == 0
    except TimeoutError:
        return False
    finally:
        process.kill()


def _lost_state() -> JsonObject:
    now = datetime.now(UTC)
    message = "The container could not be located when the pod was terminated or its kubelet restarted"
    return terminated(KILLED_EXIT_CODE, "ContainerStatusUnknown", now, now, message=message)


_HIGHEST_PORT = 65535


class ProbeError(Exception):
    """A probe that cannot be made as it is written."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A container's address, its named ports, and a function that runs a command beside it."""

    pod_ip: str
    ports: dict[str, int]
    run_command: Callable[[list[str], float | None], Awaitable[bool]]


async def run_probe(
    probe: JsonObject,
    target: ProbeTarget,
    *,
    passed_at_first: bool,
    changed: Callable[[bool], None],
    errored: Callable[[str], None],
) -> None:
    """Probe until cancelled. ``changed`` is called at each change of the verdict.

    As under Kubernetes a probe that cannot be made does not change the verdict; ``errored`` is called.
    """
    period_seconds = float(probe.get("periodSeconds") or 10)
    needed = {True: int(probe.get("successThreshold") or 1), False: int(probe.get("failureThreshold") or 3)}
    verdict, in_a_row, last = passed_at_first, 0, passed_at_first
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    while True:
        try:
            result = await probe_once(probe, target)
        except ProbeError as error:
            errored(str(error))
            await asyncio.sleep(period_seconds)
            continue
        in_a_row = in_a_row + 1 if result is last else 1
        last = result
        if result is not verdict and in_a_row >= needed[result]:
            verdict = result
            changed(verdict)
        await asyncio.sleep(period_seconds)


async def probe_once(probe: JsonObject, target: ProbeTarget) -> bool:
    """Probe once, within the probe's timeoutSeconds; ProbeError if it cannot be made."""
    timeout_seconds = float(probe.get("timeoutSeconds") or 1)
    try:
        async with asyncio.timeout(timeout_seconds):
            if "tcpSocket" in probe:
                host, port = probe["tcpSocket"].get("host"), _port(probe["tcpSocket"]["port"], target)
                _, writer = await asyncio.open_connection(host or target.pod_ip, port)
                writer.close()
                await writer.wait_closed()
                return True
            if "httpGet" in probe:
                return await _http(probe["httpGet"], target)
            if "exec" in probe:
                return await target.run_command(list(probe["exec"]["command"]), timeout_seconds)
    except (OSError, TimeoutError, aiohttp.ClientError):
        return False
    kinds = [key for key in probe if not key.endswith(("Seconds", "Threshold"))]
    raise ProbeError(f"probe is {kinds!r}, expected tcpSocket, httpGet or exec")


async def _http(action: JsonObject, target: ProbeTarget) -> bool:
    scheme = str(action.get("scheme") or "HTTP").lower()
    host = action.get("host") or target.pod_ip
    path = str(action.get("path") or "/").lstrip("/")
    url = f"{scheme}://{netloc(host, _port(action['port'], target))}/{path}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
    # As under Kubernetes: certificates are not checked, redirects count as success.
    connector = aiohttp.TCPConnector(ssl=False)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        return 200 <= response.status < 400


def _port(port: int | str, target: ProbeTarget) -> int:
    number = target.ports.get(str(port), port)
    if not str(number).isdecimal() or not 0 < int(number) <= _HIGHEST_PORT:
        known = ", ".join(sorted(target.ports)) or "none"
        raise ProbeError(f"port is {port!r}, expected a number from 1 to {_HIGHEST_PORT}, or a named port: {known}")
    return int(number)
