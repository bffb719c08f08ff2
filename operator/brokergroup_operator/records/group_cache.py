"""What the watches last said of each group: the read cache of passes.

The watches may lag behind the API. A pass that finds nothing to do in the cache ends there; any other pass reads from the API and
decides again. A cache that lags costs a pass too many, or delays a pass: until the missing event arrives, at the latest until the
next list of everything (`take_in`), which also drops what a watch lost.

Objects are shared with the watches' thread and with every pass: do not change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.kube.client import JsonObject
    from brokergroup_operator.kube.resources import Resource

# Children are found by their label, the group and its record by their name, operations by the group that they name.
LABELLED: Final = (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
WATCHED: Final = (BROKER_GROUPS, BROKER_GROUP_STATES, BROKER_GROUP_OPERATIONS, *LABELLED)


def group_of(resource: Resource, obj: Mapping[str, JsonObject]) -> GroupKey:
    """Return the group that an object of a watched kind belongs to."""
    metadata = obj["metadata"]
    if resource in LABELLED:
        name = (metadata.get("labels") or {}).get(names.LABEL_BROKER_GROUP)
    elif resource == BROKER_GROUP_OPERATIONS:
        name = ((obj.get("spec") or {}).get("brokerGroupRef") or {}).get("name")
    else:
        name = metadata.get("name")
    return GroupKey(str(metadata.get("namespace")), str(name))


class GroupCache:
    """The objects of each group by kind. All calls come from one event loop."""

    def __init__(self) -> None:
        self._held: dict[Resource, dict[GroupKey, tuple[JsonObject, ...]]] = {resource: {} for resource in WATCHED}
        self._nodes: dict[str, JsonObject] = {}
        self._listed: set[Resource] = set()
        # What a watch said, counted; and the count at which it last spoke of a group's objects.
        self._heard = 0
        self._heard_at: dict[tuple[Resource, GroupKey], int] = {}
        # Objects that a list did not have and a watch still shows: it missed their deletion.
        self._gone: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every kind was listed once. Before that, what is not here may exist."""
        return len(self._listed) == len(WATCHED)

    def one(self, resource: Resource, key: GroupKey) -> JsonObject | None:
        """Return the only object of that kind: a group, or its record."""
        return next(iter(self._held[resource].get(key, ())), None)

    def all(self, resource: Resource, key: GroupKey) -> Sequence[JsonObject]:
        """Return the objects of that kind."""
        return self._held[resource].get(key, ())

    def by_name(self, resource: Resource, key: GroupKey) -> dict[str, JsonObject]:
        """Return the objects of that kind by their names."""
        return {str(obj["metadata"]["name"]): obj for obj in self.all(resource, key)}

    def node(self, name: str) -> JsonObject | None:
        """Return the node as it is watched; None where it is not."""
        return self._nodes.get(name)

    def hold(self, resource: Resource, key: GroupKey, objects: Iterable[JsonObject]) -> bool:
        """Take in a group's objects of one kind from a watch. Return whether they changed."""
        self._heard += 1
        self._heard_at[resource, key] = self._heard
        return self._put(resource, key, tuple(obj for obj in objects if _uid(obj) not in self._gone))

    def hold_node(self, name: str, node: JsonObject | None) -> bool:
        """Take in a node, None if it is gone. Return whether it changed."""
        before = self._nodes.get(name)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        return before != node

    @property
    def heard(self) -> int:
        """How often a watch spoke: taken before a list is requested, it tells `take_in` what the list is older than."""
        return self._heard

    def take_in(self, resource: Resource, listed: Iterable[JsonObject], *, heard: int) -> set[GroupKey]:
        """Take in a list of all objects of a kind. Return the groups of which a watch had not said so."""
        found: dict[GroupKey, tuple[JsonObject, ...]] = {}
        for obj in listed:
            key = group_of(resource, obj)
            found[key] = (*found.get(key, ()), obj)
            self._gone.discard(_uid(obj))
        changed = set()
        for key in found.keys() | self._held[resource].keys():
            if self._heard_at.get((resource, key), 0) > heard:
                continue
            now = found.get(key, ())
            there = {_uid(obj) for obj in now}
            self._gone |= {_uid(obj) for obj in self.all(resource, key)} - there
            if self._put(resource, key, now):
                changed.add(key)
        self._listed.add(resource)
        for place in [place for place, at in self._heard_at.items() if place[0] == resource and at <= heard]:
            del self._heard_at[place]
        return changed

    def _put(self, resource: Resource, key: GroupKey, objects: tuple[JsonObject, ...]) -> bool:
        before = self.all(resource, key)
        if {_version(obj) for obj in before} == {_version(obj) for obj in objects}:
            return False
        if objects:
            self._held[resource][key] = objects
        else:
            self._held[resource].pop(key, None)
        return True


def _uid(obj: JsonObject) -> str:
    return str(obj["metadata"].get("uid", ""))


def _version(obj: JsonObject) -> tuple[str, str]:
    return _uid(obj), str(obj["metadata"].get("resourceVersion", ""))
