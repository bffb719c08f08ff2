"""A pod's volumes as folders of the host: made before its first container starts, removed with the pod (claims stay)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .environment import NotReadyYetError, PodFacts, Sources, UnsupportedFieldError, field_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kube_sandbox.client import JsonObject


DEFAULT_FILE_MODE = 0o644


class Volumes:
    """Makes the volumes of one pod under its folder. ``claim_folder`` answers where a bound claim's files are."""

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
        """Every volume's folder by its name; raises ``NotReadyYetError`` while something is missing."""
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
        """Write one source's files. In a projected volume a source names its object ``name``, elsewhere ``secretName``."""
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
    """The host folder of every mount path of one container."""
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
