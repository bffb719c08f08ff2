"""What the API server holds of one group, read one by one or by the group's label: never from a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import NotFoundError

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.records.store import GroupKey


class GroupObjects:
    """Reads through one client, with one deadline per request. Raises ``ApiError``."""

    def __init__(self, api: KubernetesApi, *, timeout_seconds: float) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds

    async def find(self, resource: Resource, key: GroupKey) -> JsonObject | None:
        """The object of this namespace and name, or None if there is none."""
        try:
            return await self._api.get(
                resource, key.name, namespace=key.namespace, timeout_seconds=self._timeout_seconds
            )
        except NotFoundError:
            return None

    async def labelled(self, resource: Resource, key: GroupKey) -> dict[str, JsonObject]:
        """The objects that carry the group's label, by their names."""
        listed = await self._api.list(
            resource,
            namespace=key.namespace,
            label_selector=f"{names.LABEL_BROKER_GROUP}={key.name}",
            timeout_seconds=self._timeout_seconds,
        )
        return {
            str(item["metadata"]["name"]): item
            for item in listed.items
            if (item["metadata"].get("labels") or {}).get(names.LABEL_BROKER_GROUP) == key.name
        }
