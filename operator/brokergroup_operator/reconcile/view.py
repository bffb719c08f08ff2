"""The controller plane as the reconcile plane needs it: `GroupView`, and a reservation of one very id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.observe.group_view import GroupView

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey


class ReservingGroupView(GroupView, Protocol):
    """A pod carries its broker id in its name, so the id must be known before it is reserved."""

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        """Return the id kept for this pod name; with `broker_id`, `GroupViewError` unless it is, or can be, that one."""
        ...
