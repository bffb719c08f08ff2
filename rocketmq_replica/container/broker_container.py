"""Several replicas in one process, each with its own listeners and folder (RIP-31).

They share the event loop, the threads for fsync, and one connection to each controller address: the controller hears the
heartbeats of all on one channel, and hears of the death of all when it closes. Nothing else is shared, and so a replica that fails
(its fsync, its store, a bug in a part of it) fails alone: its term ends, its listeners and links close, nothing more is written
for it, and it is started again from its disk after a pause. ``docs/reference/replica.md`` says what dies with what.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.address import join_address
from rocketmq_replica.configuration.connections import SharedConnections
from rocketmq_replica.configuration.property_values import ConfigurationError
from rocketmq_replica.container.broker_log_names import current_broker
from rocketmq_replica.container.process import FAST_PORT_BELOW, ReplicaProcess
from rocketmq_replica.container.supervision import Supervision
from rocketmq_replica.log.durable_files import StoreFileError
from rocketmq_replica.term.broker import monotonic_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketmq_replica.configuration.replica import ReplicaConfiguration

logger = logging.getLogger(__name__)

# What a replica's threads can be busy with at once: fsync, saving, an index, a start. A disk that hangs holds its own only.
_THREADS_FOR_EACH = 4
_MOST_BROKERS = 64


class ContainerError(Exception):
    """The container cannot do what it was asked; nothing has changed."""


class NoSuchBrokerError(ContainerError):
    """The container has no broker of this name and id."""


@dataclass(eq=False)
class Member:
    """One replica of the container; ``process`` is None while it waits to be started again."""

    configuration: ReplicaConfiguration
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: ReplicaProcess | None = None
    supervision: Supervision = field(default_factory=Supervision)
    problem: str = ""
    task: asyncio.Task[None] | None = None
    decided: asyncio.Event = field(default_factory=asyncio.Event)  # the first attempt listens, or has failed

    @property
    def name(self) -> tuple[str, str]:
        """Cluster and group."""
        return self.configuration.broker_cluster_name, self.configuration.broker_name

    @property
    def listens(self) -> bool:
        """Whether clients can reach it."""
        return self.process is not None and self.process.listening.is_set()

    @property
    def ids(self) -> frozenset[int]:
        """Its broker id, and the one it shows at present (0 as master); none before it has one."""
        if self.process is None:
            return frozenset()
        broker = self.process.broker
        return frozenset({broker.broker_id, broker.shown_broker_id} - {-1})


class BrokerContainer:
    """Keeps its replicas running until it is stopped."""

    def __init__(self, configurations: Sequence[ReplicaConfiguration]) -> None:
        """Nothing is opened yet. ConfigurationError when two of them would use the same port or folder."""
        self.members: list[Member] = []
        for configuration in configurations:
            self._check_free(configuration)
            self.members.append(Member(configuration))
        self._connections = SharedConnections()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set; then all are stopped, side by side."""
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
        """One more; returns when it listens. ContainerError says why it does not, and then the container does not have it."""
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
        """Stop one and forget it; its folder stays. Without an id it must be the only one of its name."""
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
        """Run it, and again after a failure: what a failure of it can be is an exception, or a group of them from its parts."""
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
        """From its disk to its end. Reading the log takes a second per GiB, in which the others go on."""
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
        """The lock of a store is Java's, which keeps out other processes only: here it is looked for by name."""
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
    """What only one replica can have, and the key that says so."""
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
    """The first cause, where parts failed as a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
