"""One container of a pod: start it, watch it, start it again with back-off, stop it.

The rules are Kubernetes': ``restartPolicy`` decides whether an ended container starts again, the delay doubles from start
to start up to a bound and falls back once the container ran long enough, and what it was doing last stays in ``lastState``.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, cast

import structlog

from kube_sandbox.client import ApiError

from .environment import NotReadyYetError, UnknownImageError
from .probes import ProbeTarget, run_probe
from .process import CONTAINER_MARK, ContainerProcess, Exit, ProcessSpec, start_error_exit
from .status import running, terminated, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from kube_sandbox.client import JsonObject


log = structlog.get_logger(__name__)

KILLED_EXIT_CODE = 137


@dataclass(frozen=True, slots=True)
class BackOffSettings:
    """How long an ended container waits before it starts again."""

    first_seconds: float = 0.5
    last_seconds: float = 30.0
    reset_after_seconds: float = 60.0


class ContainerHost(Protocol):
    """What a container asks of its pod."""

    def container_spec(self, name: str) -> JsonObject:
        """The container's part of the pod, as the API has it now."""

    async def prepare(self, name: str, restart_count: int) -> ProcessSpec:
        """What to start; raises ``NotReadyYetError`` or ``UnknownImageError``, and ``ApiError`` while the API is away."""

    def probe_target(self, name: str, spec: ProcessSpec) -> ProbeTarget:
        """Where to probe it."""

    def changed(self) -> None:
        """Something that the pod's status shows is different now."""

    def event(self, kind: str, reason: str, message: str) -> None:
        """Tell the user (``kubectl describe``); ``kind`` is Normal or Warning."""


class Container:
    """Run ``run()`` as a task; it ends when the container is not to be started again, or after ``stop()``."""

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
        # When it got SIGTERM, on the loop's clock.
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
            self._go_on_from(earlier)

    def _go_on_from(self, earlier: JsonObject) -> None:
        """An earlier kubelet ran this pod: its process was lost with it, which counts as an end."""
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
        """The container's life; None if it was stopped before it ever ended by itself."""
        loop = asyncio.get_running_loop()
        delay_seconds = self._back_off.first_seconds
        while True:
            spec = await self._prepared()
            if spec is None:
                return None
            started = loop.time()
            exit_ = await self._run_once(spec)
            if self._stop.is_set() or not self._wants_restart(exit_):
                return exit_
            if loop.time() - started >= self._back_off.reset_after_seconds:
                delay_seconds = self._back_off.first_seconds
            await self._wait_before_restart(delay_seconds)
            delay_seconds = min(delay_seconds * 2, self._back_off.last_seconds)
            if not self._stop.is_set():
                self._next_start()

    def _next_start(self) -> None:
        if "terminated" in self._state:
            self._last_state = self._state
        self._state = waiting("ContainerCreating")
        self._restart_count += 1

    def _wants_restart(self, exit_: Exit) -> bool:
        return self._restart_policy == "Always" or (self._restart_policy == "OnFailure" and exit_.code != 0)

    async def _prepared(self) -> ProcessSpec | None:
        """What to start, as soon as everything it needs is there; None if it is to stop before that."""
        delay_seconds = self._back_off.first_seconds
        while not self._stop.is_set():
            try:
                return await self._host.prepare(self.name, self._restart_count)
            except NotReadyYetError as error:
                self._wait_for(error.reason, str(error), event_reason="Failed")
            except UnknownImageError as error:
                known = self._state.get("waiting", {}).get("reason", "").endswith(("ImagePull", "BackOff"))
                self._wait_for("ImagePullBackOff" if known else "ErrImagePull", str(error), event_reason="Failed")
            except ApiError as error:
                log.warning("container waits for the API", container=self.name, error=str(error))
            await self._pause(delay_seconds)
            delay_seconds = min(delay_seconds * 2, self._back_off.last_seconds)
        return None

    def _wait_for(self, reason: str, message: str, *, event_reason: str) -> None:
        state = waiting(reason, message)
        if state != self._state:
            self._state = state
            self._host.event("Warning", event_reason, message)
            self._host.changed()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

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
            return self._could_not_start(spec, error)
        container = self._host.container_spec(self.name)
        self.process, self._spec = process, spec
        process.on_exit(self._ended)
        self._container_id = f"process://{process.pid}"
        self._state = running(process.started_at)
        self._started = "startupProbe" not in container
        self._ready = self._started and "readinessProbe" not in container
        self._host.event("Normal", "Started", f"Started container {self.name}")
        self._host.changed()
        probes = asyncio.create_task(self._probe(container, self._host.probe_target(self.name, spec)))
        try:
            return await process.wait()
        finally:
            probes.cancel()
            with suppress(asyncio.CancelledError):
                await probes

    def _could_not_start(self, spec: ProcessSpec, error: OSError) -> Exit:
        exit_ = start_error_exit()
        message = f"cannot start {list(spec.arguments)!r}: {error}"
        now = exit_.finished_at
        self._state = terminated(exit_.code, "StartError", now, now, message=message)
        self._host.event("Warning", "Failed", message)
        self._host.changed()
        return exit_

    def _ended(self, exit_: Exit) -> None:
        assert self.process is not None
        reason = "Completed" if exit_.code == 0 else "Error"
        self._state = terminated(
            exit_.code,
            reason,
            self.process.started_at,
            exit_.finished_at,
            signal=exit_.signal,
            containerID=self._container_id,
        )
        self._ready = self._started = False
        self.process = None
        self._host.changed()

    async def _probe(self, container: JsonObject, target: ProbeTarget) -> None:
        """The start-up probe first, alone; then readiness and liveness side by side."""
        if "startupProbe" in container:
            await self._wait_started(container["startupProbe"], target)
        async with asyncio.TaskGroup() as probes:
            if "readinessProbe" in container:
                probes.create_task(
                    run_probe(
                        container["readinessProbe"],
                        target,
                        passed_at_first=False,
                        changed=self._readiness_changed,
                        errored=self._probe_errored("readinessProbe"),
                    )
                )
            if "livenessProbe" in container:
                probes.create_task(
                    run_probe(
                        container["livenessProbe"],
                        target,
                        passed_at_first=True,
                        changed=lambda alive: None if alive else self._not_alive("livenessProbe"),
                        errored=self._probe_errored("livenessProbe"),
                    )
                )

    async def _wait_started(self, probe: JsonObject, target: ProbeTarget) -> None:
        verdict = asyncio.get_running_loop().create_future()

        def changed(passed: bool) -> None:
            if passed and not verdict.done():
                verdict.set_result(None)

        deadline_seconds = float(probe.get("periodSeconds") or 10) * int(probe.get("failureThreshold") or 3)
        errored = self._probe_errored("startupProbe")
        probing = asyncio.create_task(run_probe(probe, target, passed_at_first=False, changed=changed, errored=errored))
        try:
            async with asyncio.timeout(float(probe.get("initialDelaySeconds") or 0) + deadline_seconds):
                await verdict
        except TimeoutError:
            self._not_alive("startupProbe")
            await asyncio.Event().wait()  # the process ends, and this task with it
        finally:
            probing.cancel()
        self._started = True
        self._ready = "readinessProbe" not in self._host.container_spec(self.name)
        self._host.changed()

    def _readiness_changed(self, ready: bool) -> None:
        self._ready = ready
        if not ready:
            self._host.event("Warning", "Unhealthy", f"Readiness probe of {self.name} failed")
        self._host.changed()

    def _probe_errored(self, probe: str) -> Callable[[str], None]:
        return lambda error: self._host.event("Warning", "Unhealthy", f"{probe} of {self.name} errored: {error}")

    def _not_alive(self, probe: str) -> None:
        self._host.event("Warning", "Unhealthy", f"{probe} of {self.name} failed, it will be killed")
        self.kill()

    async def stop(self) -> None:
        """Ask it to end: its preStop hook, then SIGTERM. It is not started again. The caller keeps the deadline."""
        self._stop.set()
        hook = (self._host.container_spec(self.name).get("lifecycle") or {}).get("preStop") or {}
        if self.process is not None and self._spec is not None:
            await self._run_hook(hook, self._spec)
        if self.process is not None:
            self._host.event("Normal", "Killing", f"Stopping container {self.name}")
        self.terminate()

    async def _run_hook(self, hook: JsonObject, spec: ProcessSpec) -> None:
        """The grace period is its deadline."""
        if "exec" in hook:
            await self._host.probe_target(self.name, spec).run_command(list(hook["exec"]["command"]), None)
        elif "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))

    def terminate(self) -> None:
        """SIGTERM, once."""
        if self.process is not None and self.asked_to_end_seconds is None:
            self.asked_to_end_seconds = asyncio.get_running_loop().time()
            self.process.terminate()

    def kill(self) -> None:
        """SIGKILL, now, to all of it."""
        if self.process is not None:
            self.process.kill()

    def never_again(self) -> None:
        """From here on no process is started; what runs is not touched."""
        self._stop.set()

    def conclude(self) -> None:
        """The pod is over: whatever was waited for will not come, so that every container is reported terminated."""
        if "waiting" in self._state:
            self._state = self._last_state or _lost_state()
        self._ready = self._started = False


async def run_beside(spec: ProcessSpec, arguments: list[str], *, timeout_seconds: float | None = None) -> bool:
    """Run a command in a container's surroundings (probe, preStop); whether it ended with 0 in time."""
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
