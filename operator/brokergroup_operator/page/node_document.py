"""Is it safe to take this node away now? Group by group, with the reason. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.page.rows import nodes_of
from brokergroup_operator.page.what_if import without_members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.page.what_if import Wishes
    from brokergroup_operator.records.store import GroupKey

# So many groups are named, those in the way first; the others are counted.
MOST_NAMED: Final = 50


def node_document(
    node: str, groups: Iterable[tuple[GroupKey, GroupSnapshot | None, JsonObject | None, Wishes | None]]
) -> JsonObject:
    """The answer for a node, with each group that has members on it. A group of which too little is known says no."""
    told = []
    for key, snapshot, group_object, wishes in groups:
        here = {one for one, place in nodes_of(snapshot, group_object).items() if place == node}
        if not here:
            continue
        master = snapshot.record.granted_master_id if snapshot is not None and snapshot.record is not None else None
        entry: JsonObject = {"key": str(key), "members": sorted(here), "master": master in here}
        if snapshot is None or wishes is None:
            told.append({**entry, "holds": False, "text": "Too little is known of this group yet"})
            continue
        answer = without_members(wishes, snapshot, here)
        told.append({**entry, "holds": answer.holds, "text": answer.text})
    told.sort(key=lambda one: (one["holds"], one["key"]))
    in_the_way = sum(1 for one in told if not one["holds"])
    return {
        "node": node,
        "holds": in_the_way == 0,
        "text": _text(node, len(told), in_the_way),
        "groups": told[:MOST_NAMED],
        "more": max(0, len(told) - MOST_NAMED),
    }


def _text(node: str, count: int, in_the_way: int) -> str:
    if not count:
        return f"Yes: no broker is known to be on {node}"
    if not in_the_way:
        return f"Yes: {count} {'group has' if count == 1 else 'groups have'} members on {node}, and each goes on"
    return f"No: {in_the_way} of {count} {'group' if count == 1 else 'groups'} on {node} would stop taking writes or lose some"
