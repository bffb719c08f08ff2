"""What a container finds: the programs of its image, its environment and command, and its volumes as folders.

Environment, command and arguments are resolved as Kubernetes does: ``envFrom`` first, then ``env`` in turn, each seeing the
variables before it, then ``$(VAR)`` in the words. A ConfigMap, Secret or claim that is missing makes the container wait
(``NotReadyYetError``). The kubelet's own environment is not passed on.

There is no mount namespace. Where a word names a mount path, ``mount_rewriter`` puts the host's folder in its place: in
environment values, command and arguments, not in the contents of files.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kube_sandbox.client import CONFIG_MAPS, SECRETS, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kube_sandbox.client import JsonObject, KubeClient, Resource


class NotReadyYetError(Exception):
    """A container cannot start yet. Its waiting state shows reason and message, and the kubelet tries again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedFieldError(NotReadyYetError):
    """The pod uses a field that this kubelet does not support."""

    def __init__(self, message: str) -> None:
        super().__init__("CreateContainerConfigError", message)


# In an image's environment: the container's own scratch folder.
CONTAINER_FOLDER = "{container}"


class UnknownImageError(LookupError):
    """The catalogue has no entry for this image. The container waits in ErrImagePull, then ImagePullBackOff."""


@dataclass(frozen=True, slots=True)
class Image:
    """A folder of programs and an environment. The container's own variables win; ``path`` comes first in PATH."""

    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    entrypoint: tuple[str, ...] = ()

    def environment_in(self, container_folder: Path) -> dict[str, str]:
        """Return the image's environment for one container."""
        return {
            name: value.replace(CONTAINER_FOLDER, str(container_folder)) for name, value in self.environment.items()
        }


class ImageCatalogue:
    """Images by glob over their name; the first match wins."""

    def __init__(self, images: Mapping[str, Image]) -> None:
        self._images = dict(images)

    def find(self, name: str) -> Image:
        """Return the image of that name; raises UnknownImageError."""
        for pattern, image in self._images.items():
            if fnmatchcase(name, pattern):
                return image
        known = ", ".join(self._images) or "none"
        raise UnknownImageError(
            f"image {name!r} is not in the process kubelet's catalogue, which runs local programs; it knows: {known}"
        )


class Sources:
    """Reads the ConfigMaps and Secrets of one namespace, as bytes by key."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def config_map(self, name: str, *, optional: bool) -> dict[str, bytes] | None:
        """Return a ConfigMap's files; None if it is missing and optional."""
        obj = await self._read(CONFIG_MAPS, name, optional=optional)
        if obj is None:
            return None
        text = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
        return text | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}

    async def secret(self, name: str, *, optional: bool) -> dict[str, bytes] | None:
        """Return a Secret's files; None if it is missing and optional."""
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


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Values for ``fieldRef`` that only the kubelet knows."""

    pod_ip: str
    host_ip: str
    node_name: str


async def resolve_environment(
    container: JsonObject, pod: JsonObject, facts: PodFacts, sources: Sources
) -> dict[str, str]:
    """Return the variables of one container's ``envFrom`` and ``env``."""
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
    """Return the value of a ``fieldRef``; ``name`` is the variable or volume, for the message."""
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
    for kind in ("labels", "annotations"):
        prefix = f"metadata.{kind}['"
        if path.startswith(prefix) and path.endswith("']"):
            return str((metadata.get(kind) or {}).get(path[len(prefix) : -2], ""))
    expected = ", ".join([*values, "metadata.labels['…']", "metadata.annotations['…']"])
    raise UnsupportedFieldError(f"env {name!r}: fieldPath is {path!r}, expected one of {expected}")


def surroundings(image: Image, container_folder: Path, pod_name: str) -> dict[str, str]:
    """Return the variables that every container has: programs, home folder, host name."""
    programs = os.pathsep.join([*map(str, image.path), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": programs,
        "HOME": str(container_folder),
        "HOSTNAME": pod_name,
        "LANG": "C.UTF-8",
        **image.environment_in(container_folder),
    }


def resolve_arguments(container: JsonObject, image: Image, environment: Mapping[str, str]) -> list[str]:
    """Return command and arguments; a command replaces the image's entry point."""
    command = container.get("command") or list(image.entrypoint)
    if not command:
        raise UnsupportedFieldError(
            f"container {container['name']!r}: command is empty and image {container.get('image')!r} has no entry point"
        )
    return [expand(word, environment) for word in [*command, *(container.get("args") or [])]]


_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace each ``$(NAME)`` of a known variable; ``$$`` is a dollar sign."""

    def value_of(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        return variables.get(match.group(2), match.group(0))

    return _REFERENCE.sub(value_of, text)


# What may precede and follow a path in a shell script, an option or a list of paths: ``/etc/app`` is found in
# ``sed s/a/b/ /etc/app/app.conf`` and ``--config=/etc/app/app.conf``, and not in ``/etc/app-old``.
_BEFORE = r"""(?<![^\s=:,;'"`(<>|&@])"""
_AFTER = r"""(?=$|[/\s:,;'"`)<>|&*])"""


def mount_rewriter(mounts: Mapping[str, Path]) -> Callable[[str], str]:
    """Return a function that replaces each mount path in a text by its host folder; the longest mount path wins."""
    by_path = {path.rstrip("/") or "/": str(folder) for path, folder in mounts.items()}
    if not by_path:
        return lambda text: text
    longest_first = sorted(by_path, key=len, reverse=True)
    pattern = re.compile(_BEFORE + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER)
    return lambda text: pattern.sub(lambda match: by_path[match.group(1)], text)


DEFAULT_FILE_MODE = 0o644


class Volumes:
    """Makes the volumes of one pod under its folder. ``claim_folder`` returns a bound claim's folder."""

    def __init__(
        self,
        pod: JsonObject,
        pod_folder: Path,
        sources: Sources,
        claim_folder: Callable[[str, str], Path | None],
    ) -> None:
        self._pod = pod
        self._folder = pod_folder / "volumes"
        self._sources = sources
        self._claim_folder = claim_folder

    async def prepare(self, facts: PodFacts) -> dict[str, Path]:
        """Return each volume's folder by name; raises NotReadyYetError while a source is missing."""
        return {
            volume["name"]: await self._prepare_one(volume, facts) for volume in self._pod["spec"].get("volumes") or []
        }

    async def _prepare_one(self, volume: JsonObject, facts: PodFacts) -> Path:
        name: str = volume["name"]
        if "persistentVolumeClaim" in volume:
            return self._claim(volume["persistentVolumeClaim"]["claimName"])
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            return folder
        if "projected" in volume:
            for source in volume["projected"].get("sources") or []:
                await self._fill(folder, name, source, volume["projected"], facts)
            return folder
        await self._fill(folder, name, volume, volume, facts)
        return folder

    def _claim(self, claim_name: str) -> Path:
        folder = self._claim_folder(self._pod["metadata"]["namespace"], claim_name)
        if folder is None:
            raise NotReadyYetError("ContainerCreating", f'persistentvolumeclaim "{claim_name}" is not bound yet')
        return folder

    async def _fill(self, folder: Path, name: str, source: JsonObject, defaults: JsonObject, facts: PodFacts) -> None:
        """Write one source's files. A Secret's name is ``name`` in a projected volume, ``secretName`` elsewhere."""
        if "configMap" in source:
            what = source["configMap"]
            data = await self._sources.config_map(what["name"], optional=bool(what.get("optional")))
        elif "secret" in source:
            what = source["secret"]
            secret_name = what.get("secretName") or what.get("name")
            data = await self._sources.secret(secret_name, optional=bool(what.get("optional")))
        elif "downwardAPI" in source:
            what = source["downwardAPI"]
            data = {item["path"]: self._downward(name, item, facts) for item in what.get("items") or []}
            what = {"defaultMode": what.get("defaultMode")}
        else:
            kind = next((key for key in source if key != "name"), "nothing")
            raise UnsupportedFieldError(
                f"volume {name!r} is a {kind!r}, expected emptyDir, configMap, secret, downwardAPI, hostPath or"
                " persistentVolumeClaim (for the token volume: set automountServiceAccountToken to false)"
            )
        mode = what.get("defaultMode") or defaults.get("defaultMode") or DEFAULT_FILE_MODE
        _write_files(folder, data or {}, what.get("items"), mode)

    def _downward(self, volume_name: str, item: JsonObject, facts: PodFacts) -> bytes:
        if "fieldRef" not in item:
            raise UnsupportedFieldError(f"volume {volume_name!r}: item {item['path']!r} has no fieldRef")
        return field_value(volume_name, item["fieldRef"]["fieldPath"], self._pod, facts).encode()


def _write_files(folder: Path, data: Mapping[str, bytes], items: list[JsonObject] | None, mode: int) -> None:
    if items is None:
        files = [(key, value, mode) for key, value in data.items()]
    else:
        missing = [item["key"] for item in items if item["key"] not in data]
        if missing and data:
            raise NotReadyYetError("ContainerCreating", f"volume {folder.name!r}: key {missing[0]!r} is not there")
        files = [(item["path"], data[item["key"]], item.get("mode") or mode) for item in items if item["key"] in data]
    for path, value, file_mode in files:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value)
        file.chmod(file_mode)


def mounts_of(container: JsonObject, volumes: Mapping[str, Path]) -> dict[str, Path]:
    """Return the host folder of each mount path of one container."""
    mounts: dict[str, Path] = {}
    for mount in container.get("volumeMounts") or []:
        folder = volumes.get(mount["name"])
        if folder is None:
            raise UnsupportedFieldError(
                f"container {container['name']!r}: volumeMount names volume {mount['name']!r}, which the pod has not"
            )
        host = folder / mount["subPath"] if mount.get("subPath") else folder
        if not host.exists():
            host.mkdir(parents=True)
        mounts[mount["mountPath"]] = host
    return mounts
