"""Several replicas in one process, each with its own listeners and folder (RIP-31).

They share the event loop, the threads for fsync, and one connection to each controller address, on which the controller gets the
heartbeats of all and notices the death of all. Nothing else is shared, so a replica fails alone (its fsync, its store, a bug in a
part): its term ends, its listeners and links close, nothing more is written, and it is restarted from its disk after a pause.
``docs/reference/replica.md`` lists which failure affects what. The container's own port lists, adds and removes brokers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.address import join_address
from rocketmq_remoting.broker_protocol import AddBrokerRequestHeader, RemoveBrokerRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.limits import PeerLog
from rocketmq_remoting.serialization import encode_properties
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.signature import SignatureState, verify
from rocketmq_replica.broker import monotonic_seconds
from rocketmq_replica.configuration import (
    SharedConnections,
    load_configuration,
    load_container_configuration,
    server_tls,
)
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.process import FAST_PORT_BELOW, ReplicaProcess, current_broker, run_process, stop_on_signals
from rocketmq_replica.property_values import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.configuration import ContainerConfiguration, ReplicaConfiguration


logger = logging.getLogger(__name__)

# A replica's concurrent work in threads: fsync, saving, an index, a start. A hanging disk only blocks its own threads.
_THREADS_FOR_EACH = 4
_MOST_BROKERS = 64


class ContainerError(Exception):
    """The container refuses a change; nothing has changed."""


class NoSuchBrokerError(ContainerError):
    """The container has no broker of this name and id."""


FIRST_PAUSE_SECONDS = 1.0


LAST_PAUSE_SECONDS = 60.0


FORGIVEN_AFTER_SECONDS = 600.0


class Supervision:
    """The failures of one replica, and the pauses before its restarts.

    As the kubelet does with a container: one second at first, doubling up to a minute, and from the beginning after a run of ten
    minutes.
    """

    def __init__(self) -> None:
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._started_seconds = 0.0
        self.failures = 0

    def started(self, *, now_seconds: float) -> None:
        """Record a start."""
        self._started_seconds = now_seconds

    def failed(self, *, now_seconds: float) -> float:
        """Record a failure. Return the pause before the next start."""
        self.failures += 1
        if now_seconds - self._started_seconds >= FORGIVEN_AFTER_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        pause, self._pause_seconds = self._pause_seconds, min(self._pause_seconds * 2, LAST_PAUSE_SECONDS)
        return pause


@dataclass(eq=False)
class Member:
    """One replica of the container. ``process`` is None while it waits for a restart."""

    configuration: ReplicaConfiguration
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: ReplicaProcess | None = None
    supervision: Supervision = field(default_factory=Supervision)
    problem: str = ""
    task: asyncio.Task[None] | None = None
    decided: asyncio.Event = field(default_factory=asyncio.Event)  # the first start listens or has failed

    @property
    def name(self) -> tuple[str, str]:
        """The names of cluster and group."""
        return self.configuration.broker_cluster_name, self.configuration.broker_name

    @property
    def listens(self) -> bool:
        """Whether it listens."""
        return self.process is not None and self.process.listening.is_set()

    @property
    def ids(self) -> frozenset[int]:
        """Its broker id and the one that clients see (0 as master); empty before it has one."""
        if self.process is None:
            return frozenset()
        broker = self.process.broker
        return frozenset({broker.broker_id, broker.shown_broker_id} - {-1})


class BrokerContainer:
    """Keeps its replicas running."""

    def __init__(self, configurations: Sequence[ReplicaConfiguration]) -> None:
        """Raise ConfigurationError if two replicas would use the same port or folder."""
        self.members: list[Member] = []
        for configuration in configurations:
            self._check_free(configuration)
            self.members.append(Member(configuration))
        self._connections = SharedConnections()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then stop all replicas concurrently."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_THREADS_FOR_EACH * _MOST_BROKERS, thread_name_prefix="broker"))
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for member in self.members:
                    self._start(member)
                await stop.wait()
                for member in self.members:
                    member.stop.set()
        finally:
            self._tasks = None
            await self._connections.close()

    async def add(self, configuration: ReplicaConfiguration) -> None:
        """Add a replica. Return when it listens. After a ContainerError the container does not have it."""
        if self._tasks is None or len(self.members) >= _MOST_BROKERS:
            raise ContainerError(f"the container takes no more brokers, it has {len(self.members)}")
        try:
            self._check_free(configuration)
        except ConfigurationError as error:
            raise ContainerError(str(error)) from error
        member = Member(configuration)
        self.members.append(member)
        self._start(member)
        await member.decided.wait()
        if not member.listens:
            await self._stop(member)
            raise ContainerError(f"{'#'.join(member.name)}: {member.problem}")

    async def remove(self, cluster_name: str, broker_name: str, broker_id: int | None) -> None:
        """Stop and remove a replica; its folder stays. Without an id it must be the only one of its name."""
        named = [member for member in self.members if member.name == (cluster_name, broker_name)]
        found = [member for member in named if broker_id is None or broker_id in member.ids]
        if len(found) != 1:
            wanted = f"{cluster_name}#{broker_name}" + ("" if broker_id is None else f"#{broker_id}")
            raise NoSuchBrokerError(f"{wanted}: {len(found)} brokers of this container are called so, expected one")
        await self._stop(found[0])

    def _start(self, member: Member) -> None:
        assert self._tasks is not None
        member.task = self._tasks.create_task(self._keep_running(member), name="#".join(member.name))

    async def _stop(self, member: Member) -> None:
        member.stop.set()
        assert member.task is not None
        await asyncio.wait([member.task])
        if member in self.members:
            self.members.remove(member)

    async def _keep_running(self, member: Member) -> None:
        """Run a replica, and restart it after a failure: an exception, or a group of them from its parts."""
        current_broker.set(member.configuration.broker_name)
        while not member.stop.is_set():
            member.supervision.started(now_seconds=monotonic_seconds())
            try:
                await self._run_once(member)
            except (ConfigurationError, StoreFileError, OSError, ExceptionGroup) as error:
                await self._wait_after(member, error)
            finally:
                member.process = None
        member.decided.set()

    async def _run_once(self, member: Member) -> None:
        """Run a replica once. A thread reads the log, at a second per GiB, while the others continue."""
        controllers = self._connections.client(member.configuration)
        process = await asyncio.to_thread(ReplicaProcess, member.configuration, controllers=controllers)
        member.process = process
        member.problem = ""
        telling = asyncio.create_task(_tell_when_listening(member, process))
        try:
            await process.run(member.stop)
        finally:
            telling.cancel()

    async def _wait_after(self, member: Member, error: Exception) -> None:
        pause_seconds = member.supervision.failed(now_seconds=monotonic_seconds())
        member.problem = _text_of(error)
        logger.critical("%s failed and starts again in %.0f s", "#".join(member.name), pause_seconds, exc_info=error)
        member.process = None
        member.decided.set()
        try:
            async with asyncio.timeout(pause_seconds):
                await member.stop.wait()
        except TimeoutError:
            return

    def _check_free(self, wanted: ReplicaConfiguration) -> None:
        """Check ports and paths by name: the lock of a store, as in Java, only excludes other processes."""
        for member in self.members:
            taken = _claims(member.configuration)
            for claim, key in _claims(wanted).items():
                if claim in taken:
                    other = "#".join(member.name)
                    raise ConfigurationError(f"{key}={claim}: {other} of this container has it already")
        if len(_claims(wanted)) < _CLAIMS:
            raise ConfigurationError(
                f"{wanted.broker_name}: haListenPort, listenPort and the one two below, and all its paths, must differ"
            )


_CLAIMS = 7


def _claims(configuration: ReplicaConfiguration) -> dict[str, str]:
    """Return the ports and paths of a replica, which no other may have, with their keys."""
    paths = {
        "storePathRootDir": configuration.root_folder,
        "storePathCommitLog": configuration.commit_log_folder,
        "storePathEpochFile": configuration.epoch_file,
        "storePathBrokerIdentity": configuration.identity_file,
    }
    claims = {str(path.resolve()): key for key, path in paths.items()}
    host = configuration.listen_ip
    return claims | {
        join_address(host, configuration.listen_port - FAST_PORT_BELOW): "listenPort - 2",
        join_address(host, configuration.listen_port): "listenPort",
        join_address(configuration.ha_bind_ip, configuration.ha_port): "haListenPort",
    }


async def _tell_when_listening(member: Member, process: ReplicaProcess) -> None:
    await process.listening.wait()
    member.decided.set()


def _text_of(error: BaseException) -> str:
    """Return the text of the error, of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


_STOP_GRACE_SECONDS = 0.5


async def run_container(
    container: BrokerContainer, configuration: ContainerConfiguration | None, *, stop: asyncio.Event
) -> None:
    """Run until ``stop`` is set. Without a configuration the container has no port of its own."""
    if configuration is None:
        await container.run(stop)
        return
    requests = ContainerRequests(container, configuration)
    server = RemotingServer(requests, tls=server_tls(configuration))
    await server.start(configuration.bind_address, configuration.listen_port)
    try:
        await container.run(stop)
    finally:
        await server.stop(grace_seconds=_STOP_GRACE_SECONDS)


def read_container(
    paths: Sequence[Path], container_file: Path | None, environment: Mapping[str, str]
) -> tuple[BrokerContainer, ContainerConfiguration | None]:
    """Read the container and the configuration of its port. Raise ConfigurationError, which names the file and the fault.

    A file that cannot be used stops the start of the container; a later failure affects only its replica.
    """
    configuration = None if container_file is None else load_container_configuration(container_file, environment)
    files = [*paths, *(configuration.broker_config_paths if configuration is not None else ())]
    if not files and configuration is None:
        raise ConfigurationError("a container needs broker.conf files, or a container.conf, whose port can add some")
    loaded = [load_configuration(path, environment) for path in files]
    return BrokerContainer(loaded), configuration


def main(paths: Sequence[Path], container_file: Path | None = None) -> int:
    """Run the replicas of these ``broker.conf`` files in one process. Return its exit code."""

    async def run() -> None:
        container, configuration = read_container(paths, container_file, os.environ)
        await run_container(container, configuration, stop=stop_on_signals())

    return run_process(run)


peer_log = PeerLog(logging.getLogger(__name__))
NO_KEY: Final = "this container has no innerClientAuthenticationCredentials: its brokers are those it was started with"


class ContainerRequests:
    """The RemotingHandler of the container's port: which brokers it has (26), add one (902), remove one (903).

    Changes need a signature with the container's key, because 902 makes this process read a file that the caller names. Added
    brokers are not saved: a restart begins with the ``broker.conf`` files of the start.
    """

    def __init__(self, container: BrokerContainer, configuration: ContainerConfiguration) -> None:
        self._container = container
        self._configuration = configuration
        self._changes: dict[int, Callable[[RemotingCommand], Awaitable[RemotingCommand]]] = {
            RequestCode.ADD_BROKER: self._add,
            RequestCode.REMOVE_BROKER: self._remove,
        }

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Answer now, or after the broker has started or stopped."""
        change = self._changes.get(request.code)
        if change is None and request.code != RequestCode.GET_BROKER_CONFIG:
            return not_supported(request)
        refused = self._refused(request, is_change=change is not None)
        if refused:
            peer_log.warning("%s: code %d refused: %s", connection.peer_host, request.code, refused)
            return request.answer(ResponseCode.NO_PERMISSION, remark=refused)
        return self._show(request) if change is None else change(request)

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing is kept per connection."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Nothing is kept per connection."""

    def _refused(self, request: RemotingCommand, *, is_change: bool) -> str:
        """Return why the request is refused; empty if it is accepted."""
        credentials = self._configuration.credentials
        if credentials is None:
            return NO_KEY if is_change else ""
        if not is_change and not self._configuration.operators_sign:
            return ""
        state = verify(request.ext_fields, request.body, credentials)
        return "" if state is SignatureState.VALID else f"{state.value}: expected a signature with this container's key"

    def _show(self, request: RemotingCommand) -> RemotingCommand:
        """26: Java's keys, and one line for each broker."""
        members = self._container.members
        properties = {
            "bindAddress": self._configuration.bind_address,
            "listenPort": str(self._configuration.listen_port),
            "brokerConfigPaths": ":".join(str(path) for path in self._configuration.broker_config_paths),
        }
        lines = {f"broker.{'.'.join(member.name)}.{_address(member)}": _state(member) for member in members}
        return request.answer(ResponseCode.SUCCESS, body=encode_properties(properties | lines))

    async def _add(self, request: RemotingCommand) -> RemotingCommand:
        path = AddBrokerRequestHeader.decode(request.ext_fields).config_path
        if not path:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="configPath: missing, expected a broker.conf")
        try:
            # In a thread: the caller names the path, and its disk may be slow.
            await self._container.add(await asyncio.to_thread(_read, Path(path)))
        except (ConfigurationError, ContainerError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.answer(ResponseCode.SUCCESS)

    async def _remove(self, request: RemotingCommand) -> RemotingCommand:
        header = RemoveBrokerRequestHeader.decode(request.ext_fields)
        if not header.broker_cluster_name or not header.broker_name:
            remark = "brokerClusterName and brokerName: missing, expected the broker's"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        try:
            await self._container.remove(header.broker_cluster_name, header.broker_name, header.broker_id)
        except NoSuchBrokerError as error:
            return request.answer(ResponseCode.BROKER_NOT_EXIST, remark=str(error))
        return request.answer(ResponseCode.SUCCESS)


def _read(path: Path) -> ReplicaConfiguration:
    """Read a ``broker.conf``. Raise ConfigurationError also for a pipe or a device, which would block the thread."""
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path}: cannot be read: expected a file")
    return load_configuration(path, os.environ)


def _address(member: Member) -> str:
    return member.configuration.broker_address


def _state(member: Member) -> str:
    """Return a broker's state in one line; its own port has the details."""
    if member.process is None or not member.listens:
        return f"STARTING failures={member.supervision.failures} {member.problem}".rstrip()
    broker = member.process.broker
    unheard = member.process.manager.shown_health()["controllersWithoutHeartbeat"]
    return f"{broker.role.value} brokerId={broker.broker_id} failures={member.supervision.failures}" + (
        f" no heartbeat to {unheard}" if unheard else ""
    )
