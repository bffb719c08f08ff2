"""The demo's page: the operator's live page, and buttons that strike the group's master.

The demo serves the page from its start and passes requests on to the operator, so that the address is known before there is an
operator. Only this page has buttons; the operator's own only reads. A strike needs the CSRF token that only a page of this
address can read, and waits for the end of the demo's own strikes.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from aiohttp import web

from brokergroup_operator.demo.processes import hold
from brokergroup_operator.demo.watched_group import incidents
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS
from brokergroup_operator.observe.timeline import Step
from brokergroup_operator.page.access import host_of, is_loopback_host
from brokergroup_operator.page.server import HEADERS, LONGEST_REQUEST_BYTES, static_file
from rocketmq_remoting import address as addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from brokergroup_operator.demo.scenario import Scenario
    from brokergroup_operator.kube import KubernetesApi

STATIC: Final = Path(__file__).parent / "static"
TOKEN_HEADER: Final = "X-Demo-Token"  # noqa: S105 - a header's name
STREAM_SILENCE_SECONDS: Final = 15.0
FROZEN_SECONDS: Final = 20.0
CUT_SECONDS: Final = 20.0
_NFT_SECONDS: Final = 5.0
_TABLE: Final = "brokergroup_demo"
_COMING_UP: Final = "the cluster is coming up"


@dataclass(slots=True)
class DemoPage:
    """``start`` listens; ``operator_page`` is host:port of the operator's own page."""

    operator_page: str
    # None until there is a group to strike.
    strikes: Strikes | None = None
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError if the address cannot be bound."""
        application = web.Application(middlewares=[self._guard], client_max_size=LONGEST_REQUEST_BYTES)
        application.router.add_get("/", self._index)
        application.router.add_get("/static/{name:[a-z_]+\\.(js|css|svg)}", self._static)
        application.router.add_get("/demo/{name:demo\\.(js|css)}", self._own_static)
        application.router.add_get("/demo/state", self._state)
        application.router.add_post("/demo/strike", self._strike)
        application.router.add_get("/api/{rest:events|session}", self._pass_on)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=STREAM_SILENCE_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not is_loopback_host(host_of(request.headers.get("Host", ""))):
            return web.Response(status=421, text="this page answers under localhost only\n", headers=HEADERS)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _index(self, request: web.Request) -> web.Response:  # noqa: ARG002
        page = static_file("index.html").body
        assert isinstance(page, bytes)
        ours = b'<link rel="stylesheet" href="/demo/demo.css">\n<script type="module" src="/demo/demo.js"></script>\n</head>'
        return web.Response(body=page.replace(b"</head>", ours, 1), content_type="text/html", charset="utf-8")

    async def _static(self, request: web.Request) -> web.Response:
        return static_file(request.match_info["name"])

    async def _own_static(self, request: web.Request) -> web.Response:
        file = STATIC / request.match_info["name"]
        kind = "text/javascript" if file.suffix == ".js" else "text/css"
        return web.Response(body=file.read_bytes(), content_type=kind, charset="utf-8")

    async def _state(self, request: web.Request) -> web.Response:  # noqa: ARG002
        shown: dict[str, Any] = {"token": self._token, "now": round(time.time() * 1000)}
        shown |= self.strikes.state() if self.strikes is not None else {"doing": _COMING_UP}
        return web.json_response(shown)

    async def _strike(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, ""), self._token):
            return web.Response(status=403, text="the demo's token is missing: only its own page may strike\n")
        try:
            name = msgspec.json.decode(await request.read(), type=dict[str, str]).get("strike", "")
        except msgspec.DecodeError:
            return web.Response(status=400, text='expected {"strike": name}\n')
        why_not = _COMING_UP if self.strikes is None else await self.strikes.strike(name)
        if why_not:
            return web.Response(status=409, text=f"{why_not}\n")
        return web.json_response({"struck": name})

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        address = f"http://{self.operator_page}{request.rel_url}"
        kept = {name: request.headers[name] for name in ("Last-Event-ID",) if name in request.headers}
        try:
            async with self._session.get(address, headers=kept) as answer:
                response = web.StreamResponse(status=answer.status, headers={**HEADERS, "X-Accel-Buffering": "no"})
                response.content_type = answer.content_type
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            # An empty stream: the browser reconnects by itself, and the page shows meanwhile that it is not connected.
            return web.Response(body=b"retry: 500\n\n", content_type="text/event-stream")


@dataclass(slots=True)
class Strikes:
    """Kill, freeze, cut off and switch over, each to the group's master of that moment."""

    scenario: Scenario
    api: KubernetesApi
    incident_log: Path
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        """Return what the page shows beside the group."""
        ledger = self.scenario.ledger
        return {
            "doing": self.scenario.doing,
            "group": f"{self.scenario.group.namespace}/{self.scenario.group.name}",
            "acknowledged": len(ledger.acknowledgements),
            "failed": ledger.failures,
            "perSecond": ledger.rate_per_second(time.time()),
            "firstAcknowledged": first_acknowledged(self.incident_log),
            "strikes": [
                {"name": name, "label": label, "whyNot": self._why_not(name)} for name, label in _LABELS.items()
            ],
        }

    async def strike(self, name: str) -> str:
        """Do one of ``state()["strikes"]``; return why it was not done, else the empty text."""
        if name not in _LABELS:
            return f"strike {name!r}: expected one of {', '.join(_LABELS)}"
        if why_not := self._why_not(name):
            return why_not
        if name == "switchover":
            return await self._switch_over()
        group = self.scenario.group
        pid, address = self.scenario.container_pid(f"{group.name}-{group.master_id}"), group.master_address()
        if pid is None or address is None:
            return "the master has no process now"
        if name == "cut":
            return await self._cut(pid, addresses.host_of(address))
        if name == "freeze":
            self._later(self._frozen(pid))
        else:
            with suppress(ProcessLookupError), hold(pid) as held:
                held.kill()
        return ""

    async def stop(self) -> None:
        """Thaw and reconnect what is still frozen or cut off."""
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

    async def _frozen(self, pid: int) -> None:
        with suppress(ProcessLookupError), hold(pid) as held:
            held.freeze()
            try:
                await asyncio.sleep(FROZEN_SECONDS)
            finally:
                held.thaw()

    async def _cut(self, pid: int, host: str) -> str:
        drop = f"ip daddr {host} drop; ip saddr {host} drop;"
        chains = [f"chain {hook} {{ type filter hook {hook}put priority 0; {drop} }}" for hook in ("out", "in")]
        why_not = await _nft(pid, f"table ip {_TABLE} {{\n" + "\n".join(chains) + "\n}\n")
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
            "apiVersion": BROKER_GROUP_OPERATIONS.api_version,
            "kind": BROKER_GROUP_OPERATIONS.kind,
            "metadata": {"generateName": f"{group.name}-switchover-", "namespace": group.namespace},
            "spec": {
                "brokerGroupRef": {"name": group.name},
                "type": "Switchover",
                "switchover": {"deadlineSeconds": 60},
                "ttlSecondsAfterFinished": 600,
            },
        }
        try:
            await self.api.create(BROKER_GROUP_OPERATIONS, operation)
        except ApiError as error:
            return str(error)
        return ""

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def first_acknowledged(incident_log: Path) -> dict[str, float]:
    """Return, by incident, the milliseconds from its detection to the canary's first acknowledged write: the step `firstAck`."""
    steps = {incident["id"]: incident.get("stepsMilliseconds") or {} for incident in incidents(incident_log)}
    return {incident: of[Step.FIRST_ACK] for incident, of in steps.items() if Step.FIRST_ACK in of}


_LABELS: Final = {
    "kill": "Kill the master",
    "freeze": "Freeze the master",
    "cut": "Cut the master off",
    "switchover": "Switch over",
}


async def _nft(pid: int, rules: str) -> str:
    """Run nft in a process's network namespace, on loopback addresses the machine's own; return why it failed, else nothing."""
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
