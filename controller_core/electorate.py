"""Who may be elected at all: what every election looks at, and the candidates in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller_core.holdings import below_its_mark
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.policies import most_data, policy
from controller_core.settings import ControllerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An election's result: a broker id, or nobody, and the facts that led to it."""

    broker_id: int | None
    why: str
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """All that an election looks at."""

    record: BrokerGroupRecord
    live: Mapping[int, LiveReplica]
    settings: ControllerSettings
    passed_over: frozenset[int] = frozenset()

    def candidates(self, broker_ids: Iterable[int]) -> dict[int, LiveReplica]:
        """Return those that are alive, reachable, not passed over, and not known to have lost what they held (rule 2)."""
        return {
            broker_id: self.live[broker_id]
            for broker_id in sorted(broker_ids)
            if broker_id in self.live
            and broker_id not in self.passed_over
            and self.record.address_of(broker_id)
            and not (self.live[broker_id].has_reported and below_its_mark(self.record, self.live[broker_id]))
        }

    def electable(self, broker_ids: Iterable[int]) -> dict[int, LiveReplica]:
        """Return the candidates that may become master, if they are not already: they have told what they hold."""
        return {
            broker_id: replica
            for broker_id, replica in self.candidates(broker_ids).items()
            if replica.has_reported and self.settings.may_be_master(broker_id)
        }

    def best(self, replicas: Mapping[int, LiveReplica]) -> LiveReplica | None:
        """Return the group's policy's choice: only where each of them holds every acknowledged message."""
        if not replicas:
            return None
        return policy(self.settings.election_policy)(list(replicas.values()), self.record, self.settings)

    def most_data(self, replicas: Mapping[int, LiveReplica]) -> LiveReplica | None:
        """Return the replica with the most data: where data is at stake no policy is asked."""
        return most_data.choose(list(replicas.values()), self.record, self.settings) if replicas else None

    def unheard(self, broker_ids: Iterable[int]) -> list[int]:
        """Return those that have not told what they hold."""
        return [one for one in sorted(broker_ids) if one not in self.live or not self.live[one].has_reported]


def draw_ids(broker_ids: Iterable[int]) -> str:
    """Draw a set of ids in ascending order."""
    return "{" + ",".join(str(broker_id) for broker_id in sorted(broker_ids)) + "}"


def draw_replica(replica: LiveReplica) -> str:
    """Draw a replica with what it holds."""
    return f"{replica.broker_id} (epoch {replica.epoch}, offset {replica.max_offset})"
