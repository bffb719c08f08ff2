"""The list of an image's contents has what is in the image, and nothing else."""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / ".ci" / "image_contents.py"
SITE = "opt/brokergroup/lib/python3.11/site-packages"
STATUS = """Package: libstdc++6
Status: install ok installed
Architecture: arm64
Version: 1:12.2+b1~deb12

Package: half
Status: deinstall ok config-files
Version: 1
"""
FILES = {
    "var/lib/dpkg/status": STATUS,
    f"{SITE}/Kopf_x.y-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Kopf_x.y\nVersion: 1.0\n\nText\n",
    "usr/local/lib/python3.11/site-packages/pip-24.0.dist-info/METADATA": "Name: pip\nVersion: 24.0\n",
    "opt/brokergroup/pyvenv.cfg": "home = /usr/local/bin\nversion_info = 3.11.9\n",
    f"{SITE}/pyspark/jars/log4j-core-2.24.3.jar": "",
    f"{SITE}/pyspark/jars/plain.jar": "",
}


def component(name: str, version: str) -> dict[str, Any]:
    reference = f"{name}-1@{version}"
    return {"name": name, "version": version, "bom-ref": reference, "purl": f"pkg:pypi/{name}@{version}"}


def listed_of(files: dict[str, str]) -> dict[str, Any]:
    """Return uv's list of two packages, made the list of an image with these files."""
    specification = importlib.util.spec_from_file_location("image_contents", PROGRAM)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["image_contents"] = module
    specification.loader.exec_module(module)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    buffer.seek(0)
    kopf, colorama = component("kopf-x-y", "1.0"), component("colorama", "0.4")
    listed: dict[str, Any] = {
        "components": [kopf, colorama],
        "dependencies": [
            {"ref": kopf["bom-ref"], "dependsOn": [colorama["bom-ref"]]},
            {"ref": colorama["bom-ref"], "dependsOn": []},
        ],
    }
    with tarfile.open(fileobj=buffer) as tar:
        module.add_contents(tar, listed)
    return listed


def test_what_is_in_the_image_is_listed_and_what_is_only_locked_is_not() -> None:
    listed = listed_of(FILES)
    assert sorted((one["name"], one["version"]) for one in listed["components"]) == [
        ("kopf-x-y", "1.0"),
        ("libstdc++6", "1:12.2+b1~deb12"),
        ("log4j-core", "2.24.3"),
        ("pip", "24.0"),
        ("plain", ""),
        ("python", "3.11.9"),
    ]
    assert listed["dependencies"] == [{"ref": "kopf-x-y-1@1.0", "dependsOn": []}]
    purls = {one["purl"] for one in listed["components"]}
    assert "pkg:deb/debian/libstdc%2B%2B6@1:12.2%2Bb1~deb12?arch=arm64" in purls
    references = [one["bom-ref"] for one in listed["components"]]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("var/lib/dpkg/status", "deb"),
        (f"{SITE}/Kopf_x.y-1.0.dist-info/METADATA", "pypi"),
        ("opt/brokergroup/pyvenv.cfg", "python"),
    ],
)
def test_an_image_without_packages_or_interpreter_is_refused(path: str, kind: str) -> None:
    files = {name: text for name, text in FILES.items() if name != path and "pip-24" not in name}
    with pytest.raises(Exception, match=f"the image has no {kind}, expected at least one of each"):
        listed_of(files)


def test_a_package_that_was_removed_is_not_listed() -> None:
    status = STATUS.replace("Version: 1\n", "Architecture: arm64\nVersion: 1\n")
    names = {one["name"] for one in listed_of({**FILES, "var/lib/dpkg/status": status})["components"]}
    assert "libstdc++6" in names
    assert "half" not in names
