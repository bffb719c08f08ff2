"""The brokers behind the addresses of a sequence: they listen, take roles, and answer our controller's requests.

Java's controller only sends 1008, one-way. Ours queries the master's role (907), stops a master's acknowledgements before it
moves it (25, 26), asks members for the end of their logs (1007), and probes a dead master's port: so each address is a real
listener until its broker is killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.broker_protocol import EpochCacheBody, HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.support.fake_broker import end_of_log
from tests.support.places import fresh_hosts
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.differential.memory import Report

CANONICAL = re.compile(r"10\.0\.(\d+)\.(\d+):10911")
_hosts = fresh_hosts()


@dataclass
class Endpoint(QuietHandler):
    """One broker's listener. `told` lists the role changes that it got, with their sender."""

    canonical: str
    host: str
    records: Callable[[], list[BrokerGroupRecord]]
    log_of: Callable[[str, int], Report | None]
    told: list[tuple[str, dict[str, str], bytes | None]] = field(default_factory=list)
    minimum: int = 1
    server: RemotingServer | None = None
    port: int = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen, on the earlier port if it listened before."""
        if self.server is None:
            self.server = RemotingServer(self)
            await self.server.start(self.host, self.port)
            self.port = self.server.port

    async def stop(self) -> None:
        """Close the port: the next connection is refused."""
        if self.server is None:
            return
        server, self.server = self.server, None
        await server.stop(grace_seconds=0.0)

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        body: bytes | None = None
        match command.code:
            case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                by = "java" if command.is_oneway else "ours"
                self.told.append((by, dict(command.ext_fields or {}), command.body))
            case RequestCode.EXCHANGE_BROKER_HA_INFO:
                pass
            case RequestCode.GET_BROKER_HA_STATUS:
                body = self._status().encode()
            case RequestCode.GET_BROKER_EPOCH_CACHE if (found := self.end_of_log()) is not None:
                body = found.encode()
            case RequestCode.GET_BROKER_CONFIG:
                names = [record.broker_name for record in self.records() if self._ids_in(record)]
                own = f"brokerName={names[0]}\n" if names else ""
                body = f"{own}minInSyncReplicas={self.minimum}\n".encode()
            case RequestCode.UPDATE_BROKER_CONFIG:
                self.minimum = int((command.body or b"").decode().strip().partition("=")[2])
            case _:
                return not_supported(command)
        return command.answer(0, body=body)

    def _ids_in(self, record: BrokerGroupRecord) -> list[int]:
        return [one for one, replica in record.replicas.items() if replica.address == self.address]

    def end_of_log(self) -> EpochCacheBody | None:
        """Answer 1007 by the last heartbeat of this process; None if it has sent none: an empty disk would be a lie."""
        for record in self.records():
            for own in self._ids_in(record):
                log = self.log_of(record.broker_name, own)
                if log is None or not log.says_something:
                    continue
                shown_id = 0 if own == record.granted_master_id else own
                return end_of_log(record.cluster_name, record.broker_name, shown_id, log.epoch, log.max_offset)
        return None

    def _status(self) -> HARuntimeInfoBody:
        """Answer 907 by our record at once: its master is master, every other member is linked and caught up."""
        for record in self.records():
            own = self._ids_in(record)
            if own:
                links = tuple(
                    HAConnectionRuntimeInfo(addr=f"{address.rpartition(':')[0]}:50000", in_sync=True, diff=0)
                    for one in record.replicas
                    if one not in own and (address := record.address_of(one))
                )
                master = record.granted_master_id in own
                return HARuntimeInfoBody(master=master, ha_connection_info=links if master else ())
        return HARuntimeInfoBody(master=False)


class Endpoints:
    """The listeners of one sequence, by canonical address (`10.0.0.1:10911`)."""

    def __init__(
        self, records: Callable[[], list[BrokerGroupRecord]], log_of: Callable[[str, int], Report | None]
    ) -> None:
        self._records, self._log_of = records, log_of
        self._endpoints: dict[str, Endpoint] = {}

    async def prepare(self, text: str) -> None:
        """Start the listeners of all brokers in this text."""
        for match in CANONICAL.finditer(text):
            await self.at(match[0]).start()

    def at(self, canonical: str) -> Endpoint:
        """Return the broker of this canonical address."""
        if canonical not in self._endpoints:
            self._endpoints[canonical] = Endpoint(canonical, next(_hosts), self._records, self._log_of)
        return self._endpoints[canonical]

    def listens(self, canonical: str | None) -> bool:
        """Whether a broker listens at this address now."""
        endpoint = self._endpoints.get(canonical or "")
        return endpoint is not None and endpoint.server is not None

    def answers_end_of_log(self, address: str) -> bool:
        """Whether a broker listens at this real address that answers 1007."""
        return any(
            one.address == address and one.server is not None and one.end_of_log() is not None
            for one in self._endpoints.values()
        )

    def real(self, text: str) -> str:
        """Return the text with real addresses."""
        return CANONICAL.sub(lambda match: self._endpoints[match[0]].address, text)

    def canonical(self, text: str) -> str:
        """Return the text with canonical addresses."""
        if "127." in text:
            for name, endpoint in self._endpoints.items():
                text = text.replace(endpoint.address, name)
        return text

    def told(self) -> dict[str, list[tuple[str, dict[str, str], bytes | None]]]:
        """Return the role changes that each broker got."""
        return {name: endpoint.told for name, endpoint in self._endpoints.items()}

    async def stop(self) -> None:
        for endpoint in self._endpoints.values():
            await endpoint.stop()
