"""Which groups on their nodes' own network (network.addressing HostNetwork) listen at the same numbers: a node has each once.

That is no mistake while there are nodes for all of them, so nothing is refused for it. Where the scheduler finds no node with free
ports, it does not say whose they are: the group says it. As this reconcile plane knows the groups; of one namespace those alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api.names import FAST_PORT_OFFSET
from brokergroup_operator.api.network_fields import Addressing, NetworkSpec
from brokergroup_operator.api.pod_fields import MonitoringSpec
from brokergroup_operator.reconcile.turns import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.records.store import GroupKey

# The scheduler's words (NodePorts plugin).
NO_FREE_PORTS: Final = "free ports"


class HostPorts:
    """The ports of all groups that this plane knows, by number, each with the field that says so."""

    def __init__(self) -> None:
        self._ports: dict[GroupKey, dict[int, str]] = {}

    def keep_only(self, groups: Iterable[JsonObject]) -> None:
        """These are all the groups there are."""
        self._ports = {key_of(group): _ports_of(group.get("spec") or {}) for group in groups}

    def note(self, group: JsonObject) -> None:
        """Take in a group as a pass has just read it."""
        self._ports[key_of(group)] = _ports_of(group.get("spec") or {})

    def forget(self, key: GroupKey) -> None:
        """The group is gone."""
        self._ports.pop(key, None)

    def shared(self, key: GroupKey) -> str:
        """Which other groups have a port of this one, for a person to read; empty where none has."""
        own = self._ports.get(key) or {}
        told = [
            f"{field} {number} is a port of {', '.join(sorted(holders))} too"
            for number, field in sorted(own.items())
            if (holders := [str(other) for other, ports in self._ports.items() if other != key and number in ports])
        ]
        return (
            f"{'; '.join(told)}: a node has each number once. Choose others, or add nodes (spec.podTemplate.spec.nodeSelector)"
            if told
            else ""
        )


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
    return ports
