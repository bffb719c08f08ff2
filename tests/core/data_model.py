"""The parts of the data world: replicas with their disks, the controller's heartbeat table, budgets of events."""

from dataclasses import dataclass
from typing import NamedTuple

from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.settings import ControllerSettings

IDS = (1, 2, 3)
JUMP = 1000
"""How far an epoch may jump here; the settings of a run say so too."""
NOBODY = frozenset[int]()
Log = tuple[tuple[int, int], ...]
"""(epoch, message) of each message, in order."""


class Broker(NamedTuple):
    """One replica: its process, and its disk (`log`, `file_epoch`)."""

    log: Log
    file_epoch: int
    up: bool = True
    master: bool = False
    epoch: int = 0
    members: frozenset[int] = NOBODY
    asked: frozenset[int] = NOBODY
    set_epoch: int = 0
    linked: bool = False
    spoilt: bool = False
    asking: bool = False


class Told(NamedTuple):
    """A line of the controller's heartbeat table."""

    replica: LiveReplica
    as_member: bool


class Left(NamedTuple):
    """How many events of each kind remain; the budgets keep the world small."""

    messages: int = 1
    crashes: int = 1
    spoilings: int = 1
    suspicions: int = 0
    lost_answers: int = 0
    restores: int = 0
    removals: int = 0
    renewals: int = 0


class World(NamedTuple):
    """One state of the whole world."""

    record: BrokerGroupRecord
    brokers: tuple[Broker, ...]
    told: tuple[Told | None, ...]
    acknowledged: frozenset[int]
    left: Left
    backup: BrokerGroupRecord | None = None

    def broker(self, broker_id: int) -> Broker:
        return self.brokers[broker_id - 1]

    def with_broker(self, broker_id: int, broker: Broker) -> "World":
        brokers = list(self.brokers)
        brokers[broker_id - 1] = broker
        return self._replace(brokers=tuple(brokers))

    def with_told(self, broker_id: int, told: Told | None) -> "World":
        lines = list(self.told)
        lines[broker_id - 1] = told
        return self._replace(told=tuple(lines))

    @property
    def live(self) -> dict[int, LiveReplica]:
        return {line.replica.broker_id: line.replica for line in self.told if line is not None}


@dataclass(frozen=True)
class Rules:
    """The safety rules and bounds of the controller in this run, and whether its brokers behave like 5.5.0."""

    settings: ControllerSettings
    masters_shrink_first: bool = False
    seat_loss: bool = True
    epoch_floor: bool = True
    last_epoch: int = 3
    last_set_epoch: int = 7


class MessageLostError(AssertionError):
    """A replica without an acknowledged message acts as master."""


class BarredError(AssertionError):
    """A replica lost its seat without having lost data."""
