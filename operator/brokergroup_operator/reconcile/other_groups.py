"""What a reconcile plane knows of all its groups: whose turn it is to roll, which names are taken, which host ports are shared.

The tables are those of one plane: a list of all groups from time to time and each pass keep them. A plane that serves one
namespace sees the groups of that alone.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api.broker_names import NameClaim, claim_of, complaint, holder_before
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.api.names import FAST_PORT_OFFSET
from brokergroup_operator.api.network_fields import Addressing, NetworkSpec
from brokergroup_operator.api.pod_fields import MonitoringSpec
from brokergroup_operator.api.proxy_fields import PROXY_PORTS
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from controller_core.model import BrokerGroupRecord


class Turn(StrEnum):
    """A group's place among those that roll."""

    NONE = "none"  # it does not ask for a turn
    WAITS = "waits"  # it would begin, and others come before it
    HOLDS = "holds"  # it rolls: until every pod is new and in sync, or a person's word is needed


class RollingTurns:
    """At most `maximum` groups roll at one time (0: no limit): a change that touches all meets its first trouble in one group.

    A group's own UpToDate condition has the last word; it is written before the first pod is stopped, so a new operator
    restores the turns from there. Nothing is awaited between `before` and `tell`, so two groups can't take one turn. `wake`:
    its turn has come.
    """

    def __init__(self, maximum: int, wake: Callable[[GroupKey], None]) -> None:
        self._maximum = maximum
        self._wake = wake
        self._holding: set[GroupKey] = set()
        self._waiting: dict[GroupKey, str] = {}

    def restore(self, groups: Iterable[JsonObject]) -> None:
        """Restore the turns from the groups' conditions, in an operator that has just begun to reconcile."""
        for group in groups:
            match turn_of(group):
                case Turn.HOLDS:
                    self._holding.add(key_of(group))
                case Turn.WAITS:
                    self._waiting[key_of(group)] = outdated_since(group, now="")

    def keep_only(self, groups: Iterable[JsonObject]) -> None:
        there = {key_of(group) for group in groups}
        for key in (self._holding | self._waiting.keys()) - there:
            self.tell(key, Turn.NONE, since="")

    def before(self, key: GroupKey, *, since: str) -> tuple[GroupKey, ...]:
        """Return the groups that come before this one, outdated since then; none if it may begin or has begun."""
        if self._maximum == 0 or key in self._holding:
            return ()
        earlier = [
            other
            for other in self._in_order()
            if other != key and (self._waiting[other], str(other)) < (since, str(key))
        ]
        if len(self._holding) + len(earlier) < self._maximum:
            return ()
        return (*sorted(self._holding, key=str), *earlier)

    def of(self, key: GroupKey) -> Turn:
        return Turn.HOLDS if key in self._holding else Turn.WAITS if key in self._waiting else Turn.NONE

    def tell(self, key: GroupKey, turn: Turn, *, since: str) -> None:
        """Record what a pass found: the group rolls, waits, or neither."""
        gave_back = key in self._holding and turn is not Turn.HOLDS
        self._holding.discard(key)
        self._waiting.pop(key, None)
        if turn is Turn.HOLDS:
            self._holding.add(key)
        elif turn is Turn.WAITS:
            self._waiting[key] = since
        if gave_back:
            for next_key in self._in_order()[: max(0, self._maximum - len(self._holding))]:
                self._wake(next_key)

    def step_aside(self, key: GroupKey) -> None:
        """A pass failed: a group that only waits lets the others go first, until a pass reports again."""
        self._waiting.pop(key, None)

    def _in_order(self) -> list[GroupKey]:
        """Outdated for longest comes first; of those of one second, by name."""
        return sorted(self._waiting, key=lambda key: (self._waiting[key], str(key)))


def turn_of(group: JsonObject) -> Turn:
    """By the group's own condition."""
    match _up_to_date(group):
        case {"status": ConditionStatus.FALSE, "reason": Reason.ROLLING_UPDATE}:
            return Turn.HOLDS
        case {"status": ConditionStatus.FALSE, "reason": Reason.WAITING_FOR_OTHER_GROUPS}:
            return Turn.WAITS
    return Turn.NONE


def outdated_since(group: JsonObject, *, now: str) -> str:
    """When it was first seen to be outdated."""
    condition = _up_to_date(group)
    return str(condition["lastTransitionTime"]) if condition.get("status") == ConditionStatus.FALSE else now


def _up_to_date(group: JsonObject) -> JsonObject:
    conditions = (group.get("status") or {}).get("conditions") or []
    return next((dict(one) for one in conditions if one["type"] == ConditionType.UP_TO_DATE), {})


def key_of(group: JsonObject) -> GroupKey:
    return GroupKey(str(group["metadata"]["namespace"]), str(group["metadata"]["name"]))


class BrokerNames:
    """Which groups have which broker name (`api/broker_names.py` has the rule). `wake`: a group may have its name now.

    A group that was let begin keeps the name, before its finalizer is read back.
    """

    def __init__(self, wake: Callable[[GroupKey], None] = lambda _key: None) -> None:
        self._wake = wake
        self._claims: dict[GroupKey, NameClaim] = {}
        # The groups that wait, each with the one that has its name.
        self._waiting: dict[GroupKey, str] = {}

    def keep_only(self, groups: Iterable[JsonObject], registered: Collection[GroupKey]) -> None:
        there = {key_of(group): group for group in groups}
        for key in self._claims.keys() - there.keys():
            self.forget(key)
        for key, group in there.items():
            self._take(key, claim_of(group, has_registered=key in registered))

    def note(self, group: JsonObject, record: BrokerGroupRecord | None) -> None:
        self._take(key_of(group), claim_of(group, has_registered=record is not None and record.has_registered))

    def forget(self, key: GroupKey) -> None:
        self._waiting.pop(key, None)
        if (gone := self._claims.pop(key, None)) is not None:
            self._wake_behind(gone)

    def taken(self, key: GroupKey) -> str:
        """Which other group has this one's broker name, for a person to read; empty where this one has it, and keeps it."""
        own = self._claims.get(key)
        if own is None:
            return ""
        holder = holder_before(own, self._claims.values())
        if holder is None:
            self._claims[key] = replace(own, has_begun=True)
            self._waiting.pop(key, None)
            return ""
        self._waiting[key] = str(holder)
        return complaint(own, holder)

    def _take(self, key: GroupKey, claim: NameClaim) -> None:
        before = self._claims.get(key)
        if before is not None and before.uid == claim.uid:
            claim = replace(
                claim,
                has_begun=claim.has_begun or before.has_begun,
                has_registered=claim.has_registered or before.has_registered,
            )
        self._claims[key] = claim
        if before is not None and before != claim:
            self._wake_behind(before)

    def _wake_behind(self, holder: NameClaim) -> None:
        for key in [key for key, name in self._waiting.items() if name == str(holder)]:
            self._wake(key)


# The scheduler's words (NodePorts plugin).
NO_FREE_PORTS: Final = "free ports"


class HostPorts:
    """Which groups on their nodes' own network (network.addressing HostNetwork) listen at the same numbers.

    No mistake while there are nodes for all of them; but the scheduler does not say whose the ports are, so the group does.
    """

    def __init__(self) -> None:
        # By number, each with the field that says so.
        self._ports: dict[GroupKey, dict[int, str]] = {}

    def keep_only(self, groups: Iterable[JsonObject]) -> None:
        self._ports = {key_of(group): _ports_of(group.get("spec") or {}) for group in groups}

    def note(self, group: JsonObject) -> None:
        self._ports[key_of(group)] = _ports_of(group.get("spec") or {})

    def forget(self, key: GroupKey) -> None:
        self._ports.pop(key, None)

    def shared(self, key: GroupKey) -> str:
        """Which other groups have a port of this one, for a person to read; empty where none has."""
        own = self._ports.get(key) or {}
        told = [
            f"{field} {number} is a port of {', '.join(sorted(holders))} too"
            for number, field in sorted(own.items())
            if (holders := [str(other) for other, ports in self._ports.items() if other != key and number in ports])
        ]
        way_out = "a node has each number once. Choose others, or add nodes (spec.podTemplate.spec.nodeSelector)"
        return f"{'; '.join(told)}: {way_out}" if told else ""


def _ports_of(spec: dict[str, Any]) -> dict[int, str]:
    """Those that the pods' containers name, which is what the scheduler looks at."""
    network, monitoring = spec.get("network") or {}, spec.get("monitoring") or {}
    if network.get("addressing") != Addressing.HOST_NETWORK:
        return {}
    defaults = NetworkSpec()
    listen = int(network.get("listenPort", defaults.listen_port))
    ports = {
        listen: "spec.network.listenPort",
        int(network.get("haPort", defaults.ha_port)): "spec.network.haPort",
        listen - FAST_PORT_OFFSET: "the fast port below spec.network.listenPort",
    }
    if monitoring.get("exporter"):
        ports[int(monitoring.get("port", MonitoringSpec().port))] = "spec.monitoring.port"
    if spec.get("localProxy") is not None:
        ports |= dict.fromkeys(PROXY_PORTS.values(), "spec.localProxy, port")
    return ports
