"""What a container finds: the programs of its image, its environment and command, and its volumes as folders.

Environment, command and arguments are resolved as Kubernetes does: ``env`` in turn, each seeing the variables before it, then
``$(VAR)`` in the words. A ConfigMap, Secret or claim that is missing makes the container wait (``NotReadyYetError``). The kubelet's
own environment is not passed on.

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
    """Reads the ConfigMaps and Secrets of one namespace."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def files(self, resource: Resource, reference: JsonObject) -> dict[str, bytes]:
        """Return the content of a ConfigMap or Secret by key; nothing if it is missing and the reference is optional."""
        name = reference.get("secretName") or reference["name"]
        try:
            obj = await self._api.get(resource, name, namespace=self._namespace)
        except NotFoundError:
            if reference.get("optional"):
                return {}
            what = f'{resource.kind.lower()} "{name}"'
            raise NotReadyYetError("CreateContainerConfigError", f"{what} not found in {self._namespace!r}") from None
        data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
        if resource is SECRETS:
            data, binary = {}, data
        text = {key: value.encode() for key, value in data.items()}
        return text | {key: base64.b64decode(value) for key, value in binary.items()}


async def resolve_environment(
    container: JsonObject, pod: JsonObject, facts: Mapping[str, str], sources: Sources
) -> dict[str, str]:
    """Return the variables of one container; ``facts`` are the values of ``fieldRef`` that only the kubelet knows."""
    for field_name in ("envFrom", "startupProbe"):
        if container.get(field_name):
            raise UnsupportedFieldError(f"container {container['name']!r}: {field_name} is not supported here")
    environment: dict[str, str] = {}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value = await _value_from(entry["name"], entry["valueFrom"], pod, facts, sources)
            if value is not None:
                environment[entry["name"]] = value
        else:
            environment[entry["name"]] = expand(entry.get("value") or "", environment)
    return environment


async def _value_from(
    name: str, source: JsonObject, pod: JsonObject, facts: Mapping[str, str], sources: Sources
) -> str | None:
    if "fieldRef" in source:
        return _field_value(name, source["fieldRef"]["fieldPath"], pod, facts)
    given = next(iter(source), "nothing")
    resource = {"configMapKeyRef": CONFIG_MAPS, "secretKeyRef": SECRETS}.get(given)
    if resource is None:
        raise UnsupportedFieldError(
            f"env {name!r}: valueFrom is {given!r}, expected fieldRef, configMapKeyRef or secretKeyRef"
        )
    reference = source[given]
    value = (await sources.files(resource, reference)).get(reference["key"])
    if value is None and not reference.get("optional"):
        what = f"couldn't find key {reference['key']} in {resource.kind} {reference['name']}"
        raise NotReadyYetError("CreateContainerConfigError", f"env {name!r}: {what}")
    return None if value is None else value.decode()


def _field_value(name: str, path: str, pod: JsonObject, facts: Mapping[str, str]) -> str:
    """The value of a ``fieldRef``; ``name`` is the variable, for the message."""
    metadata, spec = pod["metadata"], pod["spec"]
    values: dict[str, Any] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        **facts,
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
    } | {name: value.replace(CONTAINER_FOLDER, str(container_folder)) for name, value in image.environment.items()}


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


async def prepare_volumes(
    pod: JsonObject, pod_folder: Path, sources: Sources, claim_folder: Callable[[str, str], Path | None]
) -> dict[str, Path]:
    """Make a pod's volumes and return their folders by name; raises NotReadyYetError while a source is missing.

    ``claim_folder`` returns a bound claim's folder.
    """
    folders: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or []:
        name: str = volume["name"]
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            bound = claim_folder(pod["metadata"]["namespace"], claim)
            if bound is None:
                raise NotReadyYetError("ContainerCreating", f'persistentvolumeclaim "{claim}" is not bound yet')
            folders[name] = bound
        elif "hostPath" in volume:
            folders[name] = Path(volume["hostPath"]["path"])
        else:
            folders[name] = pod_folder / "volumes" / name
            files = downward_files(volume, pod) if "downwardAPI" in volume else await _files_of(volume, sources)
            folders[name].mkdir(parents=True, exist_ok=True)
            for path, content, mode in files:
                file = folders[name] / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(mode)
    return folders


def downward_files(volume: JsonObject, pod: JsonObject) -> list[tuple[str, bytes, int]]:
    """Return path, content and mode of each file of a downwardAPI volume; the pod's labels and annotations may have changed."""
    source = volume["downwardAPI"]
    mode = source.get("defaultMode") or DEFAULT_FILE_MODE
    files = []
    for item in source.get("items") or []:
        if "fieldRef" not in item:
            raise UnsupportedFieldError(f"volume {volume['name']!r}: {item['path']!r} has no fieldRef")
        value = _field_value(f"{volume['name']}/{item['path']}", item["fieldRef"]["fieldPath"], pod, {})
        files.append((item["path"], value.encode(), item.get("mode") or mode))
    return files


def rewrite_downward_volumes(pod: JsonObject, folders: Mapping[str, Path]) -> None:
    """Bring the files of a running pod's downwardAPI volumes up to date, each at once, as the kubelet does after an update."""
    for volume in pod["spec"].get("volumes") or []:
        folder = folders.get(volume["name"])
        if "downwardAPI" not in volume or folder is None:
            continue
        for path, content, mode in downward_files(volume, pod):
            if (folder / path).read_bytes() == content:
                continue
            new = folder / f"{path}.new"
            new.write_bytes(content)
            new.chmod(mode)
            new.replace(folder / path)


async def _files_of(volume: JsonObject, sources: Sources) -> list[tuple[str, bytes, int]]:
    """Path, content and mode of each file of a volume."""
    if "emptyDir" in volume:
        return []
    kind = next((key for key in volume if key != "name"), "nothing")
    resource = {"configMap": CONFIG_MAPS, "secret": SECRETS}.get(kind)
    if resource is None:
        raise UnsupportedFieldError(
            f"volume {volume['name']!r} is a {kind!r}, expected emptyDir, configMap, secret, downwardAPI, hostPath or"
            " persistentVolumeClaim (for the token volume: set automountServiceAccountToken to false)"
        )
    data, items = await sources.files(resource, volume[kind]), volume[kind].get("items")
    mode = volume[kind].get("defaultMode") or DEFAULT_FILE_MODE
    if items is None:
        return [(key, content, mode) for key, content in data.items()]
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and data:
        raise NotReadyYetError("ContainerCreating", f"volume {volume['name']!r}: key {missing[0]!r} is not there")
    return [(item["path"], data[item["key"]], item.get("mode") or mode) for item in items if item["key"] in data]


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
