"""One replica as a process: put the parts together, run them, stop them in order.

Start: configuration, store (locked, read and repaired), listeners, then the conversation with the controllers. Stop, on SIGTERM or
SIGINT: leave the group (``controller/roles.py``), take no more connections and messages, answer waiting producers, close links,
flush everything. If any part fails unexpectedly the whole process ends: a partly working replica is worse than one that restarts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from rocketmq_remoting.message_record import Host
from rocketmq_remoting.server import RemotingServer
from rocketmq_replica.broker import Broker, Role, monotonic_seconds, wall_clock_ms
from rocketmq_replica.clients.client_requests import ClientRequests
from rocketmq_replica.clients.consumers import Clients
from rocketmq_replica.clients.delayed_delivery import DelayedDelivery
from rocketmq_replica.clients.metadata_requests import MetadataRequests, TopicRequests
from rocketmq_replica.clients.read_requests import PullRequests, ReadRequests
from rocketmq_replica.clients.send_requests import RetryRequests, SendRequests
from rocketmq_replica.clients.statistics_requests import StatisticsRequests
from rocketmq_replica.configuration import ReplicaConfiguration, load_configuration, new_client, server_tls
from rocketmq_replica.controller.client import ControllerClient
from rocketmq_replica.controller.name_server import NameServerRegistration
from rocketmq_replica.controller.operator_requests import OperatorRequests, SignatureCheck
from rocketmq_replica.controller.replicas_manager import IdentityFiles, ReplicasManager
from rocketmq_replica.controller.roles import GracefulShutdown, Roles
from rocketmq_replica.ha.client import HaClient
from rocketmq_replica.ha.metadata_sync import MetadataSync
from rocketmq_replica.ha.server import HaServer
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.message_store import MessageStore, StorePaths
from rocketmq_replica.property_values import ConfigurationError
from rocketmq_replica.request_dispatcher import RequestDispatcher
from rocketmq_replica.tables import ConsumerOffsets, DelayOffsets, Metadata, SubscriptionGroups
from rocketmq_replica.topics import Topics
from rocketmq_replica.upkeep import SaveLoop, Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from rocketmq_remoting.client import RemotingClient


logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_STOP_GRACE_SECONDS = 0.5
_SWITCH_INTERVAL_SECONDS = 0.0005
"""After how long a thread that computes lets the event loop run; Python's own 5 ms is a message's whole time."""
FAST_PORT_BELOW = 2
_MOST_UNFINISHED_BYTES = 512 << 20
"""The limit of incomplete frames: messages have up to 4 MiB, and many producers may share a host."""


class PartEndedError(RuntimeError):
    """A part that should run as long as the process has ended."""


class ReplicaProcess:
    """All parts of one replica."""

    def __init__(self, configuration: ReplicaConfiguration, *, controllers: RemotingClient | None = None) -> None:
        """Open the store; nothing listens yet. Raise ConfigurationError, StoreFileError or OSError if it cannot run.

        ``controllers`` are connections that are shared with other replicas and outlive this one. All other connections are this
        replica's own: a NameServer identifies a broker by the connection of its registration.
        """
        self.configuration = configuration
        self.listening = asyncio.Event()
        tls = server_tls(configuration)
        self._client = new_client(configuration)
        identity = IdentityFiles(
            configuration.identity_file,
            cluster_name=configuration.broker_cluster_name,
            broker_name=configuration.broker_name,
        )
        tables = configuration.root_folder / "config"
        self._offsets = offsets = ConsumerOffsets(tables / "consumerOffset.json")
        metadata = Metadata(
            offsets,
            SubscriptionGroups(tables / "subscriptionGroup.json", now_ms=wall_clock_ms()),
            DelayOffsets(tables / "delayOffset.json"),
        )
        topics = Topics(
            tables / "topics.json",
            system_topics=(configuration.broker_name, configuration.broker_cluster_name, "SELF_TEST_TOPIC"),
            queue_count=configuration.default_topic_queue_nums,
            now_ms=wall_clock_ms(),
        )
        self.store = _open_store(configuration)
        # Offsets are saved every few seconds, so a crash may leave those of a deleted topic. A topic that was created again and not
        # saved yet has messages.
        there = {topic.name for topic in topics.all()} | {name for name, _ in self.store.queues.names()}
        offsets.forget_topics(self.store.deleted_topics.keys() - there)
        self.broker = Broker(configuration, self.store, topics)
        self.ha_server = HaServer(self.broker)
        clients = Clients()
        self.pulls = PullRequests(self.broker, offsets, clients, metadata.groups)
        self.ha_client = HaClient(self.broker, self._client, on_data_applied=self.pulls.confirmed)
        self.name_servers = NameServerRegistration(self.broker, self._client, on_ha_address=self.ha_client.push_address)
        self.roles = Roles(
            self.broker, ha_server=self.ha_server, ha_client=self.ha_client, on_changed=self._role_changed
        )
        self.controller = ControllerClient(
            controllers or self._client, configuration, self.broker.live, now_ms=wall_clock_ms
        )
        self.manager = ReplicasManager(self.broker, self.roles, self.controller, identity)
        self.shutdown = GracefulShutdown(self.broker, self.ha_client, self.controller)
        self.save_loop = SaveLoop(self.broker, offsets, metadata.delay_offsets)
        self.upkeep = Upkeep(self.broker)
        self.metadata = MetadataSync(self.broker, metadata, self._client)
        # Linked, it may be elected before the next regular copy: a rebuilt member then lacks where queues ended.
        self.ha_client.before_first_link = self.metadata.copy_before_first_link
        self.delayed = DelayedDelivery(
            self.broker,
            metadata.delay_offsets,
            configuration.delay_levels_seconds,
            on_topic_created=self.name_servers.changed,
        )
        sends = SendRequests(self.broker, on_topic_created=self.name_servers.changed)
        self.dispatcher = RequestDispatcher(
            sends=sends,
            retries=RetryRequests(self.broker, sends, metadata.groups, on_topic_created=self.name_servers.changed),
            reads=ReadRequests(self.broker),
            pulls=self.pulls,
            clients=ClientRequests(self.broker, offsets, clients, on_topic_created=self.name_servers.changed),
            topics=TopicRequests(
                self.broker, offsets, on_changed=self.name_servers.changed, on_deleted=self.pulls.release_all
            ),
            metadata=MetadataRequests(self.broker, metadata, clients),
            statistics=StatisticsRequests(self.broker, offsets, clients),
            operators=OperatorRequests(
                self.broker,
                roles=self.roles,
                ha_server=self.ha_server,
                ha_client=self.ha_client,
                manager=self.manager,
            ),
            signatures=SignatureCheck(self.broker),
        )
        self.server = RemotingServer(
            self.dispatcher,
            max_in_flight=8192,
            max_unfinished_bytes=_MOST_UNFINISHED_BYTES,
            max_unfinished_bytes_per_host=_MOST_UNFINISHED_BYTES // 2,
            tls=tls,
        )
        self.fast_server = RemotingServer(self.dispatcher, tls=tls)
        self._connect_parts()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set or a part fails, then close everything. Raise the part's error."""
        failed = True
        try:
            await self._serve(stop)
            failed = False
        finally:
            await self._close(failed=failed)

    async def _serve(self, stop: asyncio.Event) -> None:
        configuration = self.configuration
        await self.ha_server.start(configuration.ha_bind_ip, configuration.ha_port)
        await self.server.start(configuration.listen_ip, configuration.listen_port)
        await self._start_fast_port()
        self.listening.set()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(_until_cancelled(name, part), name=name)
                for name, part in (
                    ("replicas manager", self.manager.run),
                    ("heartbeats", self.manager.run_heartbeats),
                    ("leader refresh", self.manager.run_leader_refresh),
                    ("name servers", self.name_servers.run),
                    ("save loop", self.save_loop.run),
                    ("upkeep", self.upkeep.run),
                    ("metadata", self.metadata.run),
                    ("delayed delivery", self.delayed.run),
                    ("ticks", self._tick),
                )
            ]
            await stop.wait()
            await self.shutdown.leave()
            for task in running:
                task.cancel()

    async def _start_fast_port(self) -> None:
        """Start Java's second listener, two ports below the first: a Java slave copies the topics only from there."""
        host, port = self.configuration.listen_ip, self.configuration.listen_port - FAST_PORT_BELOW
        try:
            await self.fast_server.start(host, port)
        except (OSError, OverflowError) as error:
            logger.warning("fast port %s:%d: %s; a Java slave of this replica gets no topics", host, port, error)

    async def _tick(self) -> None:
        while True:
            now = monotonic_seconds()
            self.ha_server.tick()
            self.ha_client.tick()
            if self.broker.term is not None:
                self.shutdown.is_master(now)
                self.broker.term.tick(now_seconds=now)
                self.broker.settle()
                self.manager.report_if_needed()
            await asyncio.sleep(_TICK_SECONDS)

    def _connect_parts(self) -> None:
        broker = self.broker
        broker.on_appended = self.ha_server.wake
        broker.on_confirmed = self.pulls.confirmed
        broker.on_proposal_possible = self.manager.report_if_needed
        broker.on_unproven_slave = self.manager.look_up_members
        self.manager.on_members = lambda addresses, asked: self.ha_server.members_known(addresses, asked_seconds=asked)
        broker.on_distrust = self._distrusted
        self.ha_client.on_master_lost = self.manager.poll_soon
        broker.on_flush_wanted = self.save_loop.flush_soon
        broker.on_flushed = self.ha_client.flushed

    def _distrusted(self) -> None:
        logger.warning("this process was paused: nothing is acknowledged until a controller confirms the epoch")
        self.manager.poll_soon()

    def _role_changed(self) -> None:
        self.name_servers.changed()
        self.pulls.release_all()
        if self.broker.role is Role.MASTER:
            self._offsets.forget_taken()
            self.delayed.term_begins()
        if self.broker.role is not Role.FENCED:
            self.manager.heartbeat()

    async def _close(self, *, failed: bool) -> None:
        self.broker.end_term()
        self.broker.close()
        self.pulls.release_all()
        try:
            await self._close_connections()
            await asyncio.gather(self.save_loop.stop(), self.upkeep.stop())  # their threads use the store's files
        except OSError:
            failed = True
            raise
        finally:
            self._release_store(failed=failed)

    async def _close_connections(self) -> None:
        await self.manager.stop()
        await self.fast_server.stop(grace_seconds=0)
        await self.server.stop(grace_seconds=_STOP_GRACE_SECONDS)
        await asyncio.gather(
            self.name_servers.stop(),
            self.ha_client.stop(),
            self.ha_server.stop(),
        )
        await self._client.close()

    def _release_store(self, *, failed: bool) -> None:
        """Release the store's lock, also for a new start in this process."""
        if failed:
            self.store.abandon()
            return
        try:
            self.store.close()
        except OSError:
            self.store.abandon()
            raise
        logger.info("stopped, log ends at %d", self.store.max_offset)


async def _until_cancelled(name: str, part: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a part. Raise PartEndedError if it ends without a cancellation, which a task group would take for success."""
    try:
        await part()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
    raise PartEndedError(f"{name}: ended unexpectedly")


def _open_store(configuration: ReplicaConfiguration) -> MessageStore:
    paths = StorePaths(configuration.root_folder, configuration.commit_log_folder, configuration.epoch_file)
    store = MessageStore(
        paths,
        file_size_bytes=configuration.mapped_file_size_commit_log,
        store_host=Host(configuration.broker_ip, configuration.listen_port),
    )
    recovery = store.recovery
    if recovery.reason:
        logger.error("recovery cut the log at %d: %s", recovery.end_offset, recovery.reason)
    else:
        logger.info("log ends at %d, last epoch %d", recovery.end_offset, store.epochs.last_epoch)
    return store


async def run_replica(configuration: ReplicaConfiguration, *, stop: asyncio.Event) -> None:
    """Run one replica until ``stop`` is set."""
    await ReplicaProcess(configuration).run(stop)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def main(config_path: Path, *, async_learner: bool = False) -> int:
    """Run the replica of this ``broker.conf``. ``async_learner`` overrides its key. Return the exit code."""

    async def run() -> None:
        configuration = load_configuration(config_path, os.environ)
        if async_learner:
            configuration = replace(configuration, async_learner=True)
        await run_replica(configuration, stop=stop_on_signals())

    return run_process(run)


def run_process(run: Callable[[], Coroutine[None, None, None]]) -> int:
    """Log to stderr and run. Return the exit code: 1 for a fault of configuration, disk or ports, 2 for a bug."""
    _log_to_stderr()
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    try:
        uvloop.run(run())
    except (ConfigurationError, StoreFileError) as error:
        logger.critical("%s", error)
        return 1
    except OSError as error:
        logger.critical("cannot start: %s", error)
        return 1
    except BaseExceptionGroup as group:
        known, rest = group.split((ConfigurationError, StoreFileError))
        if rest is not None or known is None:
            logger.critical("a part of this process failed", exc_info=True)
            return 2
        logger.critical("%s", _first_of(known))
        return 1
    return 0


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(BrokerNameFilter())
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s.%(msecs)03d %(levelname)s%(broker)s %(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


current_broker: ContextVar[str] = ContextVar("current_broker", default="")


class BrokerNameFilter(logging.Filter):
    """Adds the field ``broker`` to log records: the broker of the task's context, for a process with several."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        name = current_broker.get()
        record.broker = f" {name}" if name else ""
        return True
