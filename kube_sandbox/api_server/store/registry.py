"""Which resources the API serves right now; custom ones come and go with their definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kube_sandbox.api_server.resource_types import ResourceType


class ResourceRegistry:
    """Resource types by (group, version, plural). `generation` changes with every change, so that caches can follow."""

    def __init__(self, builtin: Iterable[ResourceType]) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self.generation = 0
        for resource in builtin:
            self._types[resource.group, resource.version, resource.plural] = resource

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        found = self._types.get((group, version, plural))
        return found if found is not None and found.served else None

    def of_storage(self, storage_key: tuple[str, str]) -> ResourceType | None:
        """One served resource that reads these objects."""
        return next((resource for resource in self if resource.storage_key == storage_key), None)

    def replace_custom(self, group: str, plural: str, types: Iterable[ResourceType]) -> None:
        """Registers all versions of one custom resource in place of whatever it had before."""
        for key in [key for key in self._types if key[0] == group and key[2] == plural]:
            del self._types[key]
        for resource in types:
            self._types[resource.group, resource.version, resource.plural] = resource
        self.generation += 1

    def groups(self) -> dict[str, list[str]]:
        """Served groups with their versions in order of registration."""
        found: dict[str, list[str]] = {}
        for resource in self:
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return found

    def __iter__(self) -> Iterator[ResourceType]:
        return (resource for resource in list(self._types.values()) if resource.served)
