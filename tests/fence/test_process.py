"""The fence as a process: it finds the broker's process by its marks; a controller and peers answer it or not.

All addresses are in 127.0.0.0/8: three members on three hosts, ports as in pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.change.fencing import PodFence, confirmed_kill
from brokergroup_operator.fence import deletion
from brokergroup_operator.fence.watchman import RoleFile
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.tls import ClientCertificates, TlsMode, TlsServerSettings
from tests.security.certificates import Authority, make_authority
from tests.support.places import loopback_hosts
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_remoting.tls import TlsFiles

BROKER_NAME = "orders"
ISOLATION_MILLISECONDS = 1500
MOST_RSS_KIB = 30 * 1024
DEADLINE_SECONDS = 20.0


def fence_environment(address: str, controllers: str) -> dict[str, str]:
    """Return a fence's own settings; `address`: its broker's, `controllers`: where it asks for the role."""
    return {
        "BROKERGROUP_CONTAINER": "fence",
        "FENCE_BROKER_NAME": BROKER_NAME,
        "FENCE_BROKER_ADDRESS": address,
        "FENCE_CONTROLLERS": controllers,
        "FENCE_ISOLATION_MILLISECONDS": str(ISOLATION_MILLISECONDS),
        "FENCE_TIMEOUT_MILLISECONDS": "2000",
        "FENCE_HEARTBEAT_TIMEOUT_MILLISECONDS": "3000",
        "FENCE_HEARTBEAT_INTERVAL_MILLISECONDS": "500",
    }


async def fence_of(module: str, environment: dict[str, str]) -> asyncio.subprocess.Process:
    """Start a fence of this kind, and wait until it watches."""
    fence = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE
    )
    assert "watching" in await said(fence)
    return fence


async def broker_of(pod_uid: str) -> asyncio.subprocess.Process:
    """Start an idle process with the marks of this pod's broker."""
    marks = {"POD_UID": pod_uid, "BROKERGROUP_CONTAINER": "broker"}
    return await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, **marks})


async def said(process: asyncio.subprocess.Process) -> str:
    """Return the next line; not one in which a fence says that this machine let it wait for processor time."""
    assert process.stdout is not None
    while "did not run" in (line := (await process.stdout.readline()).decode().strip()):
        continue
    return line


class Controller(QuietHandler):
    """Answers 1006 with the test's state, or no request at all; with certificates it accepts only TLS with a client certificate."""

    def __init__(
        self,
        hosts: list[str],
        port: int,
        certificate: TlsFiles | None = None,
        asks_for: ClientCertificates = ClientCertificates.NONE,
    ) -> None:
        self.master = 1
        self.epoch = 1
        self.answered = 0
        self.hosts = hosts
        self._port = port
        tls = None
        if certificate is not None:
            tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=certificate, client_certificates=asks_for)
        self.server = RemotingServer(self, tls=tls)

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        if request.code != RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
            return not_supported(request)
        self.answered += 1
        members = tuple(
            ReplicaIdentity(BROKER_NAME, number, f"{host}:{self._port}", alive=True)
            for number, host in enumerate(self.hosts, start=1)
        )
        info = ReplicasInfo(self.master, members[self.master - 1].broker_address, self.epoch, 1, members, ())
        return request.answer(ResponseCode.SUCCESS, body=BrokerReplicasInfoBody({BROKER_NAME: info}).encode())


@dataclass
class Pod:
    """An idle broker process and its fence."""

    host: str
    broker: asyncio.subprocess.Process
    fence: asyncio.subprocess.Process
    run_dir: Path
    uid: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    async def read(self) -> None:
        assert self.fence.stdout is not None
        async for line in self.fence.stdout:
            self.lines.append(json.loads(line))

    def role(self) -> str:
        file = self.run_dir / "role"
        return file.read_text(encoding="ascii").strip() if file.exists() else ""

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


class Group:
    """Three pods and their one controller."""

    def __init__(self, folder: Path) -> None:
        self.hosts = loopback_hosts(3)
        self.port = 10911
        self.controller = Controller(self.hosts, self.port)
        self.controller_port = 0
        # The controller's certificate, and the fences' TLS settings.
        self.certificate: TlsFiles | None = None
        self.asks_for = ClientCertificates.NONE
        self.tls_environment: dict[str, str] = {}
        self.pods: list[Pod] = []
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()

    def speak_tls(self, served: TlsFiles, *, believed: Path) -> None:
        self.certificate = served
        self.tls_environment = {"FENCE_CONTROLLER_TLS": "true", "FENCE_CONTROLLER_CA": str(believed)}

    def ask_for_certificates(self, shown: TlsFiles | None) -> None:
        """Require certificates from now on; `shown` is the fences' own."""
        self.asks_for = ClientCertificates.REQUIRED
        if shown is not None:
            files = {"FENCE_CONTROLLER_CERTIFICATE": shown.certificate, "FENCE_CONTROLLER_KEY": shown.key}
            self.tls_environment |= {name: str(path) for name, path in files.items()}

    async def start_pods(self, *, pods: int = 3) -> None:
        await self.start_controller()
        for host in self.hosts[:pods]:
            self.pods.append(await self._start_pod(host))

    async def start(self, *, pods: int = 3) -> None:
        await self.start_pods(pods=pods)
        await eventually(lambda: all(pod.role() in {"master", "slave"} for pod in self.pods), "roles heard of")

    async def start_controller(self) -> None:
        self.controller = Controller(self.hosts, self.port, self.certificate, self.asks_for)
        await self.controller.server.start("127.0.0.1", self.controller_port)
        self.controller_port = self.controller.server.port

    async def stop_controller(self) -> None:
        await self.controller.server.stop()

    async def _start_pod(self, host: str) -> Pod:
        uid = str(uuid.uuid4())
        run_dir = self._folder / host
        run_dir.mkdir()
        broker = await broker_of(uid)
        environment = fence_environment(f"{host}:{self.port}", f"127.0.0.1:{self.controller_port}")
        environment |= {"POD_UID": uid, "RUN_DIR": str(run_dir)} | self.tls_environment
        fence = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "brokergroup_operator.fence"),
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
        )
        pod = Pod(host, broker, fence, run_dir, uid)
        reading = asyncio.create_task(pod.read())
        self._stack.push_async_callback(_end, pod, reading)
        return pod

    async def close(self) -> None:
        await self._stack.aclose()
        await self.controller.server.stop()


async def _end(pod: Pod, reading: asyncio.Task[None]) -> None:
    for process in (pod.broker, pod.fence):
        if process.returncode is None:
            process.kill()
        await process.wait()
    await reading


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path / "authority")


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def test_an_isolated_master_is_killed_and_nobody_else(group: Group) -> None:
    """The peers' fences do not answer: they may hear a controller.

    CNPG #7407, #7465: the same with an old master that is unreachable from outside.
    """
    await group.start()
    for pod in group.pods[1:]:
        pod.fence.kill()
    await group.stop_controller()
    assert await group.pods[0].broker.wait() == -signal.SIGKILL
    await eventually(lambda: bool(group.pods[0].told("killed")), "the fence tells")
    assert group.pods[0].told("killed")[0]["pids"] == [group.pods[0].broker.pid]
    assert all(pod.broker.returncode is None for pod in group.pods[1:])


async def test_without_any_controller_everybody_lives_on(group: Group) -> None:
    await group.start()
    await group.stop_controller()
    await asyncio.sleep(3 * ISOLATION_MILLISECONDS / 1000)  # the absence of a kill needs the whole time
    await group.start_controller()
    await asyncio.sleep(2 * ISOLATION_MILLISECONDS / 1000)
    assert all(pod.broker.returncode is None and not pod.told("killed") for pod in group.pods)


async def test_a_frozen_pod_is_killed_as_it_wakes(group: Group) -> None:
    await group.start()
    master = group.pods[0]
    for process in (master.broker, master.fence):
        process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2 * ISOLATION_MILLISECONDS / 1000)
    assert master.broker.returncode is None
    for process in (master.broker, master.fence):
        process.send_signal(signal.SIGCONT)
    assert await master.broker.wait() == -signal.SIGKILL
    await eventually(lambda: bool(master.told("killed")), "the fence tells")
    assert master.told("did not run")


async def test_a_stopped_broker_dies_of_it_too(group: Group) -> None:
    await group.start(pods=1)
    group.pods[0].broker.send_signal(signal.SIGSTOP)
    await group.stop_controller()
    assert await group.pods[0].broker.wait() == -signal.SIGKILL


async def test_a_stopped_broker_of_a_pod_that_is_deleted_is_killed_and_a_running_one_is_left_to_its_sigterm(
    group: Group,
) -> None:
    """The kubelet sends SIGTERM to every container of a deleted pod: a stopped broker cannot handle it, and delays the failover."""
    await group.start(pods=2)
    stopped, running = group.pods
    stopped.broker.send_signal(signal.SIGSTOP)
    # A process suspended in the container (kubectl exec, Ctrl-Z) has the broker's marks, but is not the broker.
    beside = await broker_of(running.uid)
    beside.send_signal(signal.SIGSTOP)
    for pod in group.pods:
        pod.fence.terminate()
    assert await stopped.broker.wait() == -signal.SIGKILL
    assert await stopped.fence.wait() == 0
    assert "is stopped" in stopped.told("killed")[0]["why"]
    asked = group.controller.answered
    await eventually(lambda: group.controller.answered > asked + 5, "the other fence to look some ten times more")
    assert running.broker.returncode is None
    assert not running.told("killed")
    beside.kill()
    await beside.wait()


async def test_the_fence_of_a_python_broker_kills_it_only_if_it_is_stopped_when_its_pod_is_deleted() -> None:
    uid = str(uuid.uuid4())
    for stopped in (True, False):
        broker, fence = await broker_of(uid), await fence_of(deletion.__name__, {"POD_UID": uid})
        if stopped:
            broker.send_signal(signal.SIGSTOP)
        fence.terminate()
        if not stopped:
            await asyncio.sleep(4 * deletion.LOOK_SECONDS)  # the fence looks at it, and leaves it its SIGTERM
            broker.terminate()
        assert await broker.wait() == (-signal.SIGKILL if stopped else -signal.SIGTERM)
        assert await fence.wait() == 0
        assert fence.stdout is not None
        assert (b"is stopped" in await fence.stdout.read()) is stopped


def with_key(folder: Path) -> tuple[str, dict[str, str]]:
    """Return a host, and the environment of a fence there that has the key `k`."""
    (folder / "key").write_text((b"k" * 32).hex(), encoding="ascii")
    host, uid = Group(folder).hosts[0], str(uuid.uuid4())
    return host, {"POD_UID": uid, "FENCE_KEY_FILE": str(folder / "key"), "FENCE_LOCAL_ADDRESS": f"{host}:10911"}


@pytest.mark.parametrize("module", [deletion.__name__, "brokergroup_operator.fence"])
async def test_a_stopped_broker_is_killed_by_the_operators_order_and_its_death_is_proven(
    tmp_path: Path, module: str
) -> None:
    """Both kinds of fence obey the operator's key, and ignore an order with another key."""
    host, mark = with_key(tmp_path)
    broker = await broker_of(mark["POD_UID"])
    fence = await fence_of(module, fence_environment(f"{host}:10911", "127.0.0.1:9") | mark)
    broker.send_signal(signal.SIGSTOP)
    stranger, own = (PodFence("orders-1", mark["POD_UID"], host, 10913, key * 32) for key in (b"o", b"k"))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(confirmed_kill(stranger), 0.5)
        pytest.fail("a fence has taken a stranger for the operator")
    assert broker.returncode is None
    told = await asyncio.wait_for(confirmed_kill(own), DEADLINE_SECONDS)
    assert told is not None
    assert "signed" in told
    assert await broker.wait() == -signal.SIGKILL
    assert "the operator's order" in await said(fence)
    fence.terminate()
    assert await fence.wait() == 0


async def test_a_fence_that_never_saw_its_broker_proves_nothing(tmp_path: Path) -> None:
    """A process that the fence cannot see may still run."""
    host, mark = with_key(tmp_path)
    fence = await fence_of(deletion.__name__, mark)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(confirmed_kill(PodFence("orders-1", mark["POD_UID"], host, 10913, b"k" * 32)), 0.5)
    assert '"dead": false' in await said(fence)
    fence.terminate()
    assert await fence.wait() == 0


async def test_the_role_is_in_a_file_and_the_fence_outlives_the_broker(group: Group) -> None:
    await group.start()
    assert [pod.role() for pod in group.pods] == ["master", "slave", "slave"]
    group.controller.master, group.controller.epoch = 2, 2
    leaving = group.pods[1]
    await eventually(lambda: leaving.role() == "master", "the new master's role")
    leaving.fence.terminate()
    await asyncio.sleep(0.5)
    assert leaving.fence.returncode is None
    leaving.broker.terminate()
    assert await leaving.fence.wait() == 0


async def test_a_fence_started_again_in_an_isolated_pod_knows_that_controllers_were_heard(group: Group) -> None:
    """The role file outlives the fence, which does not overwrite it before it knows the role."""
    await group.start(pods=1)
    file = RoleFile(group.pods[0].run_dir)
    assert file.was_known
    assert file.write("unknown") is None
    assert file.was_known
    assert not RoleFile(group.pods[0].run_dir / "elsewhere").was_known


@pytest.mark.parametrize("asked", [False, True], ids=["TLS only", "and a certificate is asked for"])
async def test_an_isolated_master_is_killed_where_controllers_speak_tls_only(
    group: Group, authority: Authority, asked: bool
) -> None:
    group.speak_tls(authority.issue("controller"), believed=authority.certificate)
    if asked:
        group.ask_for_certificates(authority.issue("orders.shop"))
    await group.start()
    assert [pod.role() for pod in group.pods] == ["master", "slave", "slave"]
    await asyncio.sleep(2 * ISOLATION_MILLISECONDS / 1000)
    assert all(pod.broker.returncode is None for pod in group.pods)
    for pod in group.pods[1:]:
        pod.fence.kill()
    await group.stop_controller()
    assert await group.pods[0].broker.wait() == -signal.SIGKILL


async def test_a_controller_with_a_strangers_certificate_is_not_heard(
    group: Group, authority: Authority, tmp_path: Path
) -> None:
    """A false controller could keep an isolated master alive."""
    stranger = await asyncio.to_thread(make_authority, tmp_path / "stranger", "stranger")
    group.speak_tls(stranger.issue("controller"), believed=authority.certificate)
    await group.start_pods(pods=1)
    [fence] = group.pods
    await eventually(lambda: bool(fence.told("controller not understood")), "the fence tries and does not believe")
    assert [line["why"] for line in fence.told("controller not understood")] == ["CERTIFICATE_VERIFY_FAILED"]
    assert group.pods[0].role() == ""
    assert group.controller.answered == 0


@pytest.mark.parametrize(
    ("shown", "why"),
    [("none", "TLSV13_ALERT_CERTIFICATE_REQUIRED"), ("a stranger's", "TLSV1_ALERT_UNKNOWN_CA")],
)
async def test_a_fence_that_is_let_in_nowhere_says_why_and_kills_nobody(
    group: Group, authority: Authority, tmp_path: Path, shown: str, why: str
) -> None:
    """It has never heard a controller, so it cannot distinguish a wrong certificate from isolation."""
    group.speak_tls(authority.issue("controller"), believed=authority.certificate)
    stranger = await asyncio.to_thread(make_authority, tmp_path / "stranger", "stranger")
    group.ask_for_certificates(None if shown == "none" else stranger.issue("orders.shop"))
    await group.start_pods(pods=1)
    [pod] = group.pods
    # Not only this text: a connection's end may arrive before the alert on it.
    await eventually(lambda: why in {line["why"] for line in pod.told("controller not understood")}, why)
    await asyncio.sleep(2 * ISOLATION_MILLISECONDS / 1000)  # the absence of a kill needs the whole time
    assert pod.role() == ""
    assert group.controller.answered == 0
    assert pod.broker.returncode is None


@pytest.mark.parametrize("tls", [False, True])
async def test_it_is_small(group: Group, authority: Authority, tls: bool) -> None:
    """ADR 8 states the fence's memory, which is the container's request; it must suffice with TLS too."""
    if tls:
        group.speak_tls(authority.issue("controller"), believed=authority.certificate)
        group.ask_for_certificates(authority.issue("orders.shop"))
    await group.start(pods=1)
    with open(f"/proc/{group.pods[0].fence.pid}/status", encoding="ascii") as file:  # noqa: ASYNC230, PTH123
        rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    assert rss <= MOST_RSS_KIB, f"{rss} KiB"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FENCE_CONTROLLERS", "nowhere", "FENCE_CONTROLLERS is 'nowhere', expected host:port"),
        ("FENCE_ISOLATION_MILLISECONDS", "2s", "FENCE_ISOLATION_MILLISECONDS is '2s', expected a number"),
        ("POD_UID", "", "POD_UID is not set"),
        ("FENCE_CONTROLLER_TLS", "yes", "FENCE_CONTROLLER_TLS is 'yes', expected true or false"),
        (
            "FENCE_CONTROLLER_KEY", "tls.key",
            "FENCE_CONTROLLER_CERTIFICATE is None and FENCE_CONTROLLER_KEY is tls.key, expected both",
        ),
        ("FENCE_BROKER_TLS", "1", "FENCE_BROKER_TLS is '1', expected true or false"),
    ],
)  # fmt: skip
async def test_a_wrong_environment_is_told(variable: str, value: str, message: str) -> None:
    environment = fence_environment("127.0.0.1:10911", "127.0.0.1:1") | {"POD_UID": "u"} | {variable: value}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "brokergroup_operator.fence"),
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert message in errors.decode()
