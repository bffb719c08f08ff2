"""Readiness, liveness and start-up probes: one asyncio task each, Kubernetes' fields and defaults.

Source: "Configure Liveness, Readiness and Startup Probes": periodSeconds 10, timeoutSeconds 1, successThreshold 1,
failureThreshold 3. A readiness probe starts as failed, a liveness probe as passed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from kube_sandbox.client import netloc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kube_sandbox.client import JsonObject


_HIGHEST_PORT = 65535


class ProbeError(Exception):
    """The probe cannot be made at all, as it is written; says nothing about the container."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a container can be asked: its address, its named ports, and a way to run a command beside it."""

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
    """Probe for ever; ``changed`` hears every change of the verdict. Cancel to stop.

    As with the kubelet, a probe that cannot be made counts for nothing: ``errored`` hears of it, the verdict stays.
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
    """Ask once, within the probe's timeoutSeconds. ProbeError where there is no way to ask."""
    timeout_seconds = float(probe.get("timeoutSeconds") or 1)
    try:
        async with asyncio.timeout(timeout_seconds):
            if "tcpSocket" in probe:
                return await _tcp(probe["tcpSocket"], target)
            if "httpGet" in probe:
                return await _http(probe["httpGet"], target)
            if "exec" in probe:
                return await target.run_command(list(probe["exec"]["command"]), timeout_seconds)
    except (OSError, TimeoutError, aiohttp.ClientError):
        return False
    kinds = [key for key in probe if not key.endswith(("Seconds", "Threshold"))]
    raise ProbeError(f"probe is {kinds!r}, expected tcpSocket, httpGet or exec")


async def _tcp(action: JsonObject, target: ProbeTarget) -> bool:
    host = action.get("host") or target.pod_ip
    _, writer = await asyncio.open_connection(host, _port(action["port"], target))
    writer.close()
    await writer.wait_closed()
    return True


async def _http(action: JsonObject, target: ProbeTarget) -> bool:
    scheme = str(action.get("scheme") or "HTTP").lower()
    host = action.get("host") or target.pod_ip
    path = str(action.get("path") or "/").lstrip("/")
    url = f"{scheme}://{netloc(host, _port(action['port'], target))}/{path}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
    # As the kubelet: certificates are not checked, redirects count as success.
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
