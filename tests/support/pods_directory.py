"""A directory of groups with a test's own pods: their addresses, the leaving ones, the dead ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.directory.pods import PodIndex

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.directory.pods import Peer
    from brokergroup_operator.records.store import GroupKey


class GivenPods(PodIndex):
    """Pods that the test names, in place of events of the pod watch."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: dict[str, Peer] = {}
        self.terminated: dict[tuple[GroupKey, str], str] = {}

    def peer_at(self, host: str) -> Peer | None:
        return self.peers.get(host)

    def termination_at(self, key: GroupKey, address: str) -> str | None:
        return self.terminated.get((key, address))

    def hosts(self, key: GroupKey) -> dict[str, str]:
        return {peer.pod_name: host for host, peer in self.peers.items() if peer.group == key}


class PodsDirectory(FixedDirectory):
    """A directory that the test fills in place of the pod watch."""

    def __init__(self, **wishes: Any) -> None:
        super().__init__(**wishes)
        self.pods: GivenPods = GivenPods()
        # What the API has, and no watch has shown yet; None: the API does not answer.
        self.not_shown: dict[str, Any] | None = {}
        self.asked_now = 0

    async def binding_now(self, key: GroupKey) -> GroupBinding | None:
        self.asked_now += 1
        found = await super().binding_now(key)
        return None if found is None or self.not_shown is None else replace(found, **self.not_shown)

    def report_leaving(self, key: GroupKey, *hosts: str, by_force: bool = False) -> None:
        """Report which hosts' pods are being deleted, also before anything asked about the group."""
        self.wish(leaving_hosts=frozenset(hosts), removed_hosts=frozenset(hosts if by_force else ()))
        for callback in self.on_leaving:
            callback(key)

    def wish(self, **changes: Any) -> None:
        """Change the spec of all groups: fields of every binding."""
        self.template = replace(self.template, **changes)
        self._bindings.update({key: replace(one, **changes) for key, one in self._bindings.items()})
        self.revision += 1

    def introduce(self, host: str, peer: Peer) -> None:
        """Set which pod has this address."""
        self.pods.peers[host] = peer

    def report_terminated(
        self, key: GroupKey, broker_id: int, *, address: str, how: str = "container terminated"
    ) -> None:
        """Report that a member's process at this address is dead."""
        self.pods.terminated[key, address] = how
        for callback in self.on_gone:
            callback(key, broker_id)
