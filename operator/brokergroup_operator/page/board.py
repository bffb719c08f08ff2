"""The latest picture of every group, and what changed since which version. Lives in the page's thread alone.

Every viewer gets from here what is new to it, so none needs a queue: a viewer that reads slowly gets updates less often, and costs
no memory meanwhile. ``version`` counts changes of rows; ``boot`` tells a browser that reconnects whether its version is ours.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.page.group_document import group_document
from brokergroup_operator.page.incidents import MOST_KEPT, incident_document, merged, told_by_status
from brokergroup_operator.page.node_document import node_document
from brokergroup_operator.page.rows import Row, row_of
from brokergroup_operator.page.sighting import SetChange
from brokergroup_operator.page.what_if import wishes_of
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.page.sighting import Sighting
    from brokergroup_operator.page.what_if import Wishes

SETS_KEPT: Final = 50
REMOVED_KEPT: Final = 10_000
# Rows in one message: what a viewer has not read yet is at most one of these.
ROWS_AT_ONCE: Final = 400


class Board:
    """``take`` and ``object_changed`` bring news; ``publish`` makes them a version; the rest is read by viewers."""

    def __init__(self, group_objects: Mapping[tuple[str, str], JsonObject]) -> None:
        self.boot = uuid.uuid4().hex
        self.version = 0
        self._objects = group_objects
        self._sightings: dict[GroupKey, Sighting] = {}
        # In the order of their versions, the oldest first. None: the group is gone.
        self._rows: OrderedDict[GroupKey, tuple[int, Row | None]] = OrderedDict()
        self._dirty: set[GroupKey] = set()
        self._sets: dict[GroupKey, deque[SetChange]] = {}
        self._incidents: dict[GroupKey, OrderedDict[float, JsonObject]] = {}
        self._known: frozenset[GroupKey] = frozenset()
        self._wishes: dict[GroupKey, tuple[Any, Wishes | None]] = {}

    def take(self, sightings: Iterable[Sighting], changes: Iterable[SetChange], known: frozenset[GroupKey]) -> None:
        """Take in what the feed saw, what this process committed, and every group that the controller plane knows."""
        for change in changes:
            self._note_set(change)
        for sighting in sightings:
            key = sighting.snapshot.key
            if sighting.snapshot.record is not None:
                self._note_set(SetChange.of(key, sighting.snapshot.record, sighting.seen_at_unix_seconds))
            for timeline in (sighting.snapshot.last_failover, sighting.snapshot.last_switchover):
                self._note_incident(key, timeline)
            self._sightings[key] = sighting
            self._dirty.add(key)
        for key in self._known - known:
            self._sightings.pop(key, None)
            self._dirty.add(key)
        self._known = known

    def object_changed(self, key: GroupKey) -> None:
        """A BrokerGroup changed in the API."""
        self._dirty.add(key)

    @property
    def namespaces(self) -> frozenset[str]:
        """Where there are groups."""
        return frozenset(key.namespace for key in self._known) | {namespace for namespace, _ in self._objects}

    def publish(self) -> bool:
        """Make rows of what is new; return whether any viewer of the overview can see a difference."""
        before = self.version
        for key in self._dirty:
            row = self._row(key) if self._exists(key) else None
            known = self._rows.get(key)
            if (known is None and row is not None) or (known is not None and known[1] != row):
                self.version += 1
                self._rows[key] = (self.version, row)
                self._rows.move_to_end(key)
        self._dirty.clear()
        self._forget_removed()
        return self.version != before

    def rows_after(self, version: int, may_see: Callable[[str], bool]) -> tuple[int, JsonObject]:
        """The next rows after this version, at most ``ROWS_AT_ONCE`` of them, and the version that they lead to."""
        newer: list[tuple[GroupKey, tuple[int, Row | None]]] = []
        for key, entry in reversed(self._rows.items()):
            if entry[0] <= version:
                break
            newer.append((key, entry))
        newer.reverse()
        batch = newer[:ROWS_AT_ONCE]
        reached = batch[-1][1][0] if len(newer) > len(batch) else self.version
        rows = {str(key): (row.as_list() if row else None) for key, (_, row) in batch if may_see(key.namespace)}
        return reached, {"rows": rows, "version": reached, "boot": self.boot}

    def group(self, key: GroupKey) -> JsonObject | None:
        """The whole document of one group; None where there is no such group."""
        if not self._exists(key):
            return None
        sighting, group_object, wishes = self._facts(key)
        return group_document(
            key,
            sighting,
            group_object,
            wishes,
            set_history=list(self._sets.get(key, ())),
            incidents=self._all_incidents(key, group_object, sighting.snapshot if sighting else None),
        )

    def node(self, node: str, may_see: Callable[[str], bool]) -> JsonObject:
        """Whether the node may be taken away, by the groups that this viewer may see."""
        keys = [
            key
            for key, (_, row) in self._rows.items()
            if row is not None and node in row.nodes and may_see(key.namespace)
        ]
        return node_document(node, (self._with_snapshot(key) for key in keys))

    def oldest_sighting(self) -> float | None:
        """When the group that was looked at the longest ago was looked at (Unix seconds)."""
        return min((one.seen_at_unix_seconds for one in self._sightings.values()), default=None)

    def _with_snapshot(self, key: GroupKey) -> tuple[GroupKey, GroupSnapshot | None, JsonObject | None, Wishes | None]:
        sighting, group_object, wishes = self._facts(key)
        return key, sighting.snapshot if sighting is not None else None, group_object, wishes

    def _facts(self, key: GroupKey) -> tuple[Sighting | None, JsonObject | None, Wishes | None]:
        sighting = self._sightings.get(key)
        group_object = self._objects.get((key.namespace, key.name))
        return sighting, group_object, self._wishes_of(key, group_object, sighting)

    def _wishes_of(self, key: GroupKey, group_object: JsonObject | None, sighting: Sighting | None) -> Wishes | None:
        """Made once for each version of the object: a manifest takes longer to read than everything else of a row."""
        record = sighting.snapshot.record if sighting is not None else None
        version = (group_object or {}).get("metadata", {}).get("resourceVersion")
        made_of = (version, tuple(record.replicas) if record is not None else ())
        known = self._wishes.get(key)
        if known is None or known[0] != made_of or version is None:
            known = self._wishes[key] = (made_of, wishes_of(group_object, record))
        return known[1]

    def _exists(self, key: GroupKey) -> bool:
        return key in self._known or (key.namespace, key.name) in self._objects

    def _row(self, key: GroupKey) -> Row:
        sighting, group_object, wishes = self._facts(key)
        return row_of(sighting.snapshot if sighting is not None else None, group_object, wishes)

    def _forget_removed(self) -> None:
        """A viewer whose version is older than what is forgotten here starts anew: ``boot`` changes."""
        removed = [key for key, (_, row) in self._rows.items() if row is None]
        for key in removed[: max(0, len(removed) - REMOVED_KEPT)]:
            del self._rows[key]
            self._sets.pop(key, None)
            self._wishes.pop(key, None)
            self._incidents.pop(key, None)
            self.boot = uuid.uuid4().hex

    def _note_set(self, change: SetChange) -> None:
        """Newer ones only: a sighting may have been taken before a commit that was handed over with it."""
        kept = self._sets.setdefault(change.key, deque(maxlen=SETS_KEPT))
        if not kept or (
            change.what != kept[0].what
            and (change.epoch, change.sync_state_set_epoch)
            >= (
                kept[0].epoch,
                kept[0].sync_state_set_epoch,
            )
        ):
            kept.appendleft(change)

    def _note_incident(self, key: GroupKey, timeline: FailoverTimeline | None) -> None:
        if timeline is None or timeline.outcome in (Outcome.RUNNING, Outcome.CANCELLED):
            return
        kept = self._incidents.setdefault(key, OrderedDict())
        kept[timeline.started_at_unix_seconds] = incident_document(timeline)
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)

    def _all_incidents(
        self, key: GroupKey, group_object: JsonObject | None, snapshot: GroupSnapshot | None
    ) -> list[Any]:
        told = ((group_object or {}).get("status") or {}).get("failovers") or []
        running = snapshot.in_progress.incident_id if snapshot is not None and snapshot.in_progress else None
        over = merged(self._incidents.get(key, {}).values(), [told_by_status(key, one) for one in told])
        return [one for one in over if one["id"] != running]


def key_of(text: str) -> GroupKey | None:
    """``namespace/name`` as an address has it; None where it is nothing of the kind."""
    namespace, _, name = text.partition("/")
    return GroupKey(namespace, name) if namespace and name and "/" not in name else None


def now_milliseconds() -> int:
    """The clock of every time on the page."""
    return round(time.time() * 1000)
