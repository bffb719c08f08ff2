"""What the watches last said of each group: the read cache of passes.

The watches may lag behind the API. A pass that finds nothing to do in the cache ends there; any other pass reads from the API and
decides again. A cache that lags costs a pass too many, or delays a pass: until the missing event arrives, at the latest until the
next list of everything (`take_in`), which also drops what a watch lost.

Objects are trimmed (`kube/trimmed.py`) and shared by all passes: do not change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from brokergroup_operator.kube.trimmed import trimmed
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.kube.client import JsonObject
    from brokergroup_operator.kube.resources import Resource

# Children are found by their label, the group and its record by their name, operations by the group that they name.
LABELLED: Final = (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, NETWORK_POLICIES)
WATCHED: Final = (BROKER_GROUPS, BROKER_GROUP_STATES, BROKER_GROUP_OPERATIONS, *LABELLED)
# Of these a pass reads when they last wrote, and which labels they hold (`reconcile/see/observed.py`).
MANAGERS: Final = frozenset({names.FIELD_MANAGER_RECONCILE, names.FIELD_MANAGER_STATUS})


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
    """The objects of each group by kind. All calls come from one event loop.

    `unread` are kinds that the operator may not list: the cache is complete without them.
    """

    def __init__(self, unread: frozenset[Resource] = frozenset()) -> None:
        self.unread = unread
        self._held: dict[Resource, dict[GroupKey, dict[str, JsonObject]]] = {resource: {} for resource in WATCHED}
        self._groups: dict[Resource, dict[str, GroupKey]] = {resource: {} for resource in WATCHED}
        self._nodes: dict[str, JsonObject] = {}
        self._listed: set[Resource] = set()
        # What a watch said, counted; and the count at which it last spoke of an object.
        self._heard = 0
        self._heard_at: dict[tuple[Resource, str], int] = {}
        # Objects that a list did not have: the watch missed their deletion, and may still bring an older event of one.
        self._gone: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every kind that can be listed was. Before that, what is not here may exist."""
        return self._listed | self.unread == set(WATCHED)

    def one(self, resource: Resource, key: GroupKey) -> JsonObject | None:
        """Return the only object of that kind: a group, or its record."""
        return next(iter(self.all(resource, key)), None)

    def all(self, resource: Resource, key: GroupKey) -> Sequence[JsonObject]:
        """Return the objects of that kind."""
        return tuple(self._held[resource].get(key, {}).values())

    def by_name(self, resource: Resource, key: GroupKey) -> dict[str, JsonObject]:
        """Return the objects of that kind by their names."""
        return {str(obj["metadata"]["name"]): obj for obj in self.all(resource, key)}

    def node(self, name: str) -> JsonObject | None:
        """Return the node as it is watched; None where it is not."""
        return self._nodes.get(name)

    def hold(self, resource: Resource, obj: JsonObject, *, is_gone: bool = False) -> set[GroupKey]:
        """Take in what a watch said of an object. Return the groups that this changed: two where it went from one to another."""
        uid = _uid(obj)
        self._heard += 1
        self._heard_at[resource, uid] = self._heard
        if is_gone:
            self._gone.discard(uid)
            return self._drop(resource, uid)
        return set() if uid in self._gone or self._has(resource, obj) else self._put(resource, trimmed(obj, MANAGERS))

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
        """Take in a list of all objects of a kind, trimmed. Return the groups of which a watch had not said so."""
        now = {_uid(obj): obj for obj in listed}
        self._gone -= now.keys()
        newer = {uid for (kind, uid), at in self._heard_at.items() if kind == resource and at > heard}
        changed: set[GroupKey] = set()
        for uid, obj in now.items():
            if uid not in newer and not self._has(resource, obj):
                changed |= self._put(resource, obj)
        for uid in self._groups[resource].keys() - now.keys() - newer:
            self._gone.add(uid)
            changed |= self._drop(resource, uid)
        self._listed.add(resource)
        self._heard_at = {of: at for of, at in self._heard_at.items() if of[0] != resource or at > heard}
        return changed

    def _has(self, resource: Resource, obj: JsonObject) -> bool:
        before = self._held[resource].get(group_of(resource, obj), {}).get(_uid(obj))
        return before is not None and _version(before) == _version(obj)

    def _put(self, resource: Resource, obj: JsonObject) -> set[GroupKey]:
        key, uid = group_of(resource, obj), _uid(obj)
        former = self._drop(resource, uid)
        self._groups[resource][uid] = key
        self._held[resource].setdefault(key, {})[uid] = obj
        return {key} | former

    def _drop(self, resource: Resource, uid: str) -> set[GroupKey]:
        key = self._groups[resource].pop(uid, None)
        if key is None:
            return set()
        objects = self._held[resource][key]
        del objects[uid]
        if not objects:
            del self._held[resource][key]
        return {key}


def _uid(obj: JsonObject) -> str:
    return str(obj["metadata"].get("uid", ""))


def _version(obj: JsonObject) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))
