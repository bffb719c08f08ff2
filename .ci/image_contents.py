"""What is in an image, as components of CycloneDX: read from the image's own files.

Debian packages     dpkg's status
Python packages     each *.dist-info; uv's list of uv.lock says more of those that it has
the interpreter     pyvenv.cfg: a base image may have compiled its own, of which dpkg knows nothing
Java archives       each *.jar, by name and checksum: Spark brings them
"""

from __future__ import annotations

import email
import hashlib
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import tarfile

Component = dict[str, Any]


class ContentsError(Exception):
    """An image in which something that each of ours has is missing; for a person."""


def add_contents(tar: tarfile.TarFile, listed: dict[str, Any]) -> None:
    """Make uv's list the list of an image's file system: without what is not there, and with what uv does not know."""
    found = _read(tar)
    missing = [kind for kind, components in found.items() if not components and kind != "jar"]
    if missing:
        raise ContentsError(f"the image has no {' and no '.join(missing)}, expected at least one of each")
    installed = {one["purl"]: one for one in found["pypi"]}
    known = [one for one in listed["components"] if one.get("purl") in installed]
    unknown = [one for purl, one in installed.items() if purl not in {known_one["purl"] for known_one in known}]
    listed["components"] = [*known, *unknown, *found["deb"], *found["python"], *found["jar"]]
    references = {one["bom-ref"] for one in listed["components"]}
    listed["dependencies"] = [
        {**one, "dependsOn": [each for each in one.get("dependsOn", []) if each in references]}
        for one in listed.get("dependencies", [])
        if one["ref"] in references
    ]


def _read(tar: tarfile.TarFile) -> dict[str, list[Component]]:
    found: dict[str, list[Component]] = {"deb": [], "pypi": [], "python": [], "jar": []}
    for entry in tar:
        path = PurePosixPath(entry.name)
        if (file := tar.extractfile(entry) if entry.isreg() else None) is None:
            continue
        if str(path) == "var/lib/dpkg/status":
            found["deb"] += debian_packages(file.read().decode())
        elif path.name == "METADATA" and path.parent.suffix == ".dist-info":
            found["pypi"].append(_python_package(file.read().decode()))
        elif path.name == "pyvenv.cfg":
            found["python"] += _interpreters(file.read().decode())
        elif path.suffix == ".jar":
            found["jar"].append(_java_archive(path, file.read()))
    return found


def debian_packages(status: str) -> list[Component]:
    """Return the installed packages of dpkg's status; those removed have an entry while their settings remain."""
    components = []
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Architecture|Status): (.+)$", entry))
        if fields.get("Status", "").endswith(" installed"):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe=':')}?arch={architecture}"
            components.append(_component(name, version, purl))
    return components


def _python_package(metadata: str) -> Component:
    fields = email.message_from_string(metadata)
    name, version = re.sub(r"[-_.]+", "-", str(fields["Name"])).lower(), str(fields["Version"])
    return _component(name, version, f"pkg:pypi/{name}@{version}")


def _interpreters(settings: str) -> list[Component]:
    versions = re.findall(r"(?m)^version(?:_info)? *= *(\d+\.\d+\.\d+)", settings)
    return [
        {**_component("python", version, f"pkg:generic/python@{version}"), "type": "application"}
        for version in versions
    ]


def _java_archive(path: PurePosixPath, content: bytes) -> Component:
    [(name, version)] = re.findall(r"^(.+?)(?:-(\d.*))?$", path.stem)
    purl = f"pkg:generic/{quote(path.name)}"
    checksum = {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}
    # The reference has the place: two folders may have an archive of the same name.
    return {**_component(name, version, purl), "bom-ref": str(path), "hashes": [checksum]}


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
