"""What the API knows of a resource besides its objects: names, scope, subresources, columns, and how it behaves.

Built-in kinds come from `kinds/builtin.py`, custom ones from their CustomResourceDefinition (`kinds/custom_resources.py`). The
store treats both alike; what differs is in the `Behaviour`.
"""

# The methods of Behaviour are for subclasses to override: their arguments are named for them.
# ruff: noqa: ARG002

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import FieldError, GroupResource
from kube_sandbox.api_server.kinds import model_schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kube_sandbox.api_server.values import JsonObject


@dataclass(frozen=True)
class Column:
    """One column of a Table; `cell` reads it from an object, given the current time in epoch seconds."""

    definition: JsonObject
    cell: Callable[[JsonObject, float], Any]


@dataclass(frozen=True)
class ScalePaths:
    """Where a custom resource keeps what its scale subresource shows."""

    spec_replicas: str
    status_replicas: str
    label_selector: str


class Behaviour:
    """How writes to a kind are completed and validated. The base class accepts everything; kinds override what differs."""

    # The client's model of a built-in kind (`V1Pod`), empty for custom ones.
    model = ""
    # Whether metadata.generation exists and counts changes outside metadata (and status).
    counts_generation = False
    # Whether a PUT may leave metadata.resourceVersion out (most built-in kinds) or not (custom ones, Leases).
    unconditional_update = True
    # Whether deletion marks even an object that goes at once (pods).
    marks_deletion = False
    # Which rule names follow: `subdomain`, `label` or `dns1035`.
    name_rule = "subdomain"
    # Whether deletion answers with the object (pods, claims, services) or with a Status.
    returns_deleted_object = False

    def drop_unknown_fields(self, obj: JsonObject) -> list[str]:
        """Remove fields that the kind does not have; return their paths."""
        return []

    def set_defaults(self, obj: JsonObject) -> None:
        """Fill in what the author left out; runs on every write."""

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:
        """Add what admission adds; no field manager owns it."""

    def prepare_create(self, obj: JsonObject) -> None:
        """Set what only the server may set on a new object."""

    def prepare_update(self, new: JsonObject, old: JsonObject) -> None:
        """Carry over what an ordinary update cannot change."""

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        """Carry over what an update of the status subresource cannot change: by default all but status."""
        metadata = dict(old["metadata"])
        metadata["resourceVersion"] = new["metadata"].get("resourceVersion", "")
        status = new.get("status")
        new.clear()
        new.update({key: value for key, value in old.items() if key != "status"})
        new["metadata"] = metadata
        if status is not None:
            new["status"] = status

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:
        """Return the complaints about the object as it would be stored."""
        return []

    def judge_among(self, new: JsonObject, others: Iterable[JsonObject]) -> list[FieldError]:
        """Return the complaints about the object beside all others of its kind, in every namespace."""
        return []

    def grace_period_seconds(self, obj: JsonObject, asked: int | None) -> int:
        """Return how long the object stays after a deletion; only a pod's kubelet needs that time."""
        return 0

    def mark_deleted(self, obj: JsonObject) -> JsonObject:
        """Return the object with what else changes when deletion begins (a namespace's phase)."""
        return obj

    def is_held(self, obj: JsonObject) -> bool:
        """Whether the kind keeps an object that is marked for deletion, besides finalizers and the grace period."""
        return False

    # Server-side apply asks these of a place: field names, `*` for the items of a list. Here as in built-in kinds.

    def list_map_keys(self, place: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the keys of the list, () for a set, None for an atomic list."""
        return () if place and place[-1] in model_schemas.SETS else model_schemas.merge_keys(place)

    def key_default(self, place: tuple[str, ...], key: str) -> Any:
        """Return the value of a key that an item of the keyed list leaves out."""
        return "TCP" if key == "protocol" and place[-1] == "ports" else None

    def is_atomic_map(self, place: tuple[str, ...]) -> bool:
        """Whether the map is owned and replaced as a whole."""
        return bool(place) and (place[-1] in model_schemas.ATOMIC_MAPS or place == ("spec", "selector"))

    def is_always_there(self, place: tuple[str, ...]) -> bool:
        """Whether the map or list exists in every object, so that its existence has no owner."""
        return place in model_schemas.ALWAYS_THERE


@dataclass(frozen=True)
class ResourceType:
    """One resource in one API version."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    scale: ScalePaths | None = None
    other_subresources: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    selectable_fields: frozenset[str] = frozenset()
    behaviour: Behaviour = field(default_factory=Behaviour)
    custom: bool = False

    def __post_init__(self) -> None:
        if not self.singular:
            object.__setattr__(self, "singular", self.kind.lower())
        common = {"metadata.name", "metadata.namespace"} if self.namespaced else {"metadata.name"}
        object.__setattr__(self, "selectable_fields", self.selectable_fields | common)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> GroupResource:
        return GroupResource(self.group, self.plural)

    @property
    def storage_key(self) -> tuple[str, str]:
        """The key of the stored objects."""
        return self.group, self.plural

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def subresources(self) -> tuple[str, ...]:
        own = (("status",) if self.has_status else ()) + (("scale",) if self.scale else ())
        return own + self.other_subresources


class ResourceRegistry:
    """Which resources the API serves now, by (group, version, plural). `generation` changes with every definition."""

    def __init__(self, builtin: Iterable[ResourceType]) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self.generation = 0
        for resource in builtin:
            self._types[resource.group, resource.version, resource.plural] = resource

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        return self._types.get((group, version, plural))

    def of_storage(self, storage_key: tuple[str, str]) -> ResourceType | None:
        """Return one served resource of these objects."""
        return next((resource for resource in self if resource.storage_key == storage_key), None)

    def replace_custom(self, group: str, plural: str, types: Iterable[ResourceType]) -> None:
        """Register the versions of one custom resource in place of its former ones."""
        for key in [key for key in self._types if key[0] == group and key[2] == plural]:
            del self._types[key]
        for resource in types:
            self._types[resource.group, resource.version, resource.plural] = resource
        self.generation += 1

    def groups(self) -> dict[str, list[str]]:
        """Return the served groups with their versions in order of registration."""
        found: dict[str, list[str]] = {}
        for resource in self:
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return found

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(list(self._types.values()))
