"""What a container finds: its environment, command and arguments, resolved as the kubelet resolves them.

Order and rules are Kubernetes': ``envFrom`` first, then ``env`` in turn, each seeing those before it; then the command and
arguments with ``$(VAR)``. ConfigMaps and Secrets are read when a container starts; what is not there yet is no failure of the
pod: it waits, says for what, and goes on when it comes. The kubelet's own environment is not passed on.

A mount has no mount namespace: where a container's words name a mount path, they get the host's folder instead. Rewritten are
environment values, command and arguments, not the contents of files. A path is recognised at its boundaries, so that in
``sed s/a/b/ /etc/app/app.conf`` and in ``--config=/etc/app/app.conf`` the mount ``/etc/app`` is meant, and in ``/etc/app-old``
it is not.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kube_sandbox.client import CONFIG_MAPS, SECRETS, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kube_sandbox.client import JsonObject, KubeClient, Resource

    from .images import Image

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand every reference in ``text``."""

    def value_of(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        return variables.get(match.group(2), match.group(0))

    return _REFERENCE.sub(value_of, text)


# What may stand before a path, and what may follow it, in a shell script, an option or a list of paths.
_BEFORE = r"""(?<![^\s=:,;'"`(<>|&@])"""
_AFTER = r"""(?=$|[/\s:,;'"`)<>|&*])"""


def mount_rewriter(mounts: Mapping[str, Path]) -> Callable[[str], str]:
    """A function that replaces every mount path in a text by its host folder; the longest mount path wins."""
    by_path = {path.rstrip("/") or "/": str(folder) for path, folder in mounts.items()}
    if not by_path:
        return lambda text: text
    longest_first = sorted(by_path, key=len, reverse=True)
    pattern = re.compile(_BEFORE + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER)
    return lambda text: pattern.sub(lambda match: by_path[match.group(1)], text)


class NotReadyYetError(Exception):
    """A container cannot start yet; ``reason`` and the message go into its waiting state, and it is tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Sources:
    """The ConfigMaps and Secrets of one namespace, as bytes by key."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
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


class UnsupportedFieldError(NotReadyYetError):
    """The pod asks for something this kubelet does not do."""

    def __init__(self, message: str) -> None:
        super().__init__("CreateContainerConfigError", message)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the pod's own fields (``fieldRef``) may be asked for, beyond the object as the API has it."""

    pod_ip: str
    host_ip: str
    node_name: str


async def resolve_environment(
    container: JsonObject, pod: JsonObject, facts: PodFacts, sources: Sources
) -> dict[str, str]:
    """``envFrom`` and ``env`` of one container."""
    environment: dict[str, str] = {}
    for entry in container.get("envFrom") or []:
        environment.update(await _whole_source(entry, sources))
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value = await _value_from(entry["name"], entry["valueFrom"], pod, facts, sources)
            if value is not None:
                environment[entry["name"]] = value
        else:
            environment[entry["name"]] = expand(entry.get("value") or "", environment)
    return environment


async def _whole_source(entry: JsonObject, sources: Sources) -> dict[str, str]:
    if "configMapRef" in entry:
        reference = entry["configMapRef"]
        data = await sources.config_map(reference["name"], optional=bool(reference.get("optional")))
    else:
        reference = entry["secretRef"]
        data = await sources.secret(reference["name"], optional=bool(reference.get("optional")))
    prefix = entry.get("prefix") or ""
    return {prefix + key: value.decode() for key, value in (data or {}).items()}


async def _value_from(name: str, source: JsonObject, pod: JsonObject, facts: PodFacts, sources: Sources) -> str | None:
    if "fieldRef" in source:
        return field_value(name, source["fieldRef"]["fieldPath"], pod, facts)
    if "configMapKeyRef" in source:
        kind, reference = "ConfigMap", source["configMapKeyRef"]
        data = await sources.config_map(reference["name"], optional=bool(reference.get("optional")))
    elif "secretKeyRef" in source:
        kind, reference = "Secret", source["secretKeyRef"]
        data = await sources.secret(reference["name"], optional=bool(reference.get("optional")))
    else:
        given = next(iter(source), "nothing")
        raise UnsupportedFieldError(
            f"env {name!r}: valueFrom is {given!r}, expected fieldRef, configMapKeyRef or secretKeyRef"
        )
    value = (data or {}).get(reference["key"])
    if value is None and not reference.get("optional"):
        raise NotReadyYetError(
            "CreateContainerConfigError",
            f"env {name!r}: couldn't find key {reference['key']} in {kind} {reference['name']}",
        )
    return None if value is None else value.decode()


def field_value(name: str, path: str, pod: JsonObject, facts: PodFacts) -> str:
    """The value of a ``fieldRef``; ``name`` is who asks, for the message."""
    metadata, spec = pod["metadata"], pod["spec"]
    values: dict[str, Any] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path in values:
        return str(values[path])
    for field in ("labels", "annotations"):
        prefix = f"metadata.{field}['"
        if path.startswith(prefix) and path.endswith("']"):
            return str((metadata.get(field) or {}).get(path[len(prefix) : -2], ""))
    expected = ", ".join([*values, "metadata.labels['…']", "metadata.annotations['…']"])
    raise UnsupportedFieldError(f"env {name!r}: fieldPath is {path!r}, expected one of {expected}")


def surroundings(image: Image, container_folder: Path, pod_name: str) -> dict[str, str]:
    """What any container finds before its own variables: programs, a home of its own, its host name."""
    programs = os.pathsep.join([*map(str, image.path), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": programs,
        "HOME": str(container_folder),
        "HOSTNAME": pod_name,
        "LANG": "C.UTF-8",
        **image.environment_in(container_folder),
    }


def resolve_arguments(container: JsonObject, image: Image, environment: Mapping[str, str]) -> list[str]:
    """Command and arguments: a command replaces the image's entry point, arguments follow."""
    command = container.get("command") or list(image.entrypoint)
    if not command:
        raise UnsupportedFieldError(
            f"container {container['name']!r}: command is empty and image {container.get('image')!r} has no entry point"
        )
    return [expand(word, environment) for word in [*command, *(container.get("args") or [])]]
