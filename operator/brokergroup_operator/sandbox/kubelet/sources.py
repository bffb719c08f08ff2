"""What a pod refers to in other objects: ConfigMaps and Secrets, read when a container starts.

Something that is not there yet is no failure of the pod: it waits, says for what, and goes on when it comes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import CONFIG_MAPS, SECRETS

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource


class NotReadyYetError(Exception):
    """A container cannot start yet; ``reason`` and the message go into its waiting state, and it is tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Sources:
    """The ConfigMaps and Secrets of one namespace, as bytes by key."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def config_map(self, name: str, *, optional: bool) -> dict[str, bytes] | None:
        """A ConfigMap's files; None if it is missing and that is allowed."""
        obj = await self._read(CONFIG_MAPS, name, optional=optional)
        if obj is None:
            return None
        text = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
        return text | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}

    async def secret(self, name: str, *, optional: bool) -> dict[str, bytes] | None:
        """A Secret's files; None if it is missing and that is allowed."""
        obj = await self._read(SECRETS, name, optional=optional)
        if obj is None:
            return None
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}

    async def _read(self, resource: Resource, name: str, *, optional: bool) -> dict[str, Any] | None:
        try:
            return await self._api.get(resource, name, namespace=self._namespace)
        except NotFoundError:
            if optional:
                return None
            raise NotReadyYetError(
                "CreateContainerConfigError", f'{resource.kind.lower()} "{name}" not found in {self._namespace!r}'
            ) from None
