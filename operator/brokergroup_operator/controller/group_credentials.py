"""Whose key a request to a broker is signed with: that of the group whose member has this address now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.controller.groups import Groups
    from rocketmq_remoting.signature import Credentials


class GroupCredentials:
    """Called with an address. Remembers whose it was, and looks again when that is true no more."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._found: dict[str, Group] = {}

    def __call__(self, address: str) -> Credentials | None:
        """The credentials of the group that a live member at this address belongs to; if none is live, of any with it."""
        group = self._found.get(address)
        if group is None or not _is_of(group, address, alive=True):
            group = self._look(address)
        return group.binding.credentials if group is not None else None

    def _look(self, address: str) -> Group | None:
        self._found.pop(address, None)
        signing = [group for group in self._groups if group.binding.credentials is not None]
        for alive in (True, False):
            for group in signing:
                if _is_of(group, address, alive=alive):
                    self._found[address] = group
                    return group
        return None


def _is_of(group: Group, address: str, *, alive: bool) -> bool:
    record = group.record
    if record is None:
        return False
    ids = (one for one, replica in record.replicas.items() if replica.address == address)
    return any(group.is_live(one) or not alive for one in ids)
