"""Whose key a request to a broker is signed with: that of the group whose member has this address now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.groups import Groups
    from rocketmq_remoting.signature import Credentials


class GroupCredentials:
    """Called with an address before each request to a broker."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def __call__(self, address: str) -> Credentials | None:
        """The credentials of the group that a live member at this address belongs to; if none is live, of any with it."""
        signing = [one for one in self._groups.members_at(address) if one[0].binding.credentials is not None]
        found = max(signing, key=lambda one: one[0].is_live(one[1]), default=None)
        return found[0].binding.credentials if found is not None else None
