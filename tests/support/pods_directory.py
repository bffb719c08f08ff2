"""A directory of groups with a test's own pods: their addresses, the leaving ones, the dead ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, MemberGone

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import Peer
    from brokergroup_operator.records.store import GroupKey


class PodsDirectory(FixedDirectory):
    """A directory that the test fills in place of the pod watch."""

    def __init__(self, **wishes: Any) -> None:
        super().__init__(**wishes)
        self._peers: dict[str, Peer] = {}
        self._terminated: dict[tuple[GroupKey, int], tuple[str, str]] = {}
        self._removed: dict[GroupKey, frozenset[str]] = {}

    def known_peer(self, host: str) -> Peer | None:
        return self._peers.get(host)

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:
        ended_at, how = self._terminated.get((key, broker_id), ("", ""))
        return how if ended_at == address else None

    def pod_hosts(self, key: GroupKey) -> dict[str, str]:
        return {peer.pod_name: host for host, peer in self._peers.items() if peer.group == key}

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        return self._removed.get(key, frozenset())

    def report_leaving(self, key: GroupKey, *hosts: str, by_force: bool = False) -> None:
        """Report which hosts' pods are being deleted."""
        self._removed[key] = frozenset(hosts if by_force else ())
        self._report_leaving(key, frozenset(hosts))

    def wish(self, **changes: Any) -> None:
        """Change the spec of all groups: fields of every binding."""
        self.template = replace(self.template, **changes)
        for names in (self._bindings, self._unregistered):
            names.update({key: replace(one, **changes) for key, one in names.items()})
        self.revision += 1

    def introduce(self, host: str, peer: Peer) -> None:
        """Set which pod has this address."""
        self._peers[host] = peer

    def report_terminated(
        self, key: GroupKey, broker_id: int, *, address: str, how: str = "container terminated"
    ) -> None:
        """Report that a member's process at this address is dead."""
        self._terminated[key, broker_id] = (address, how)
        self._report_gone(MemberGone(key=key, broker_id=broker_id, how=how))
