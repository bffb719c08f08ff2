"""A repository that has this checkout's files and an image of few bytes: it is published in seconds, by the same program."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from typing import TYPE_CHECKING

from tests.release.publication import ROOT, output_of

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = """ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS operator
LABEL of=operator
FROM ${PYTHON_IMAGE} AS sla
LABEL of=sla
"""
DPKG_STATUS = """Package: libc6
Status: install ok installed
Architecture: {architecture}
Version: 2.36-9+deb12u10
"""
SITE = "opt/brokergroup/lib/python3.11/site-packages"
# What the base image has, which the small image is; uv.lock has kopf.
FILES = {
    "opt/brokergroup/pyvenv.cfg": "version_info = 3.11.9\n",
    f"{SITE}/kopf-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: kopf\nVersion: 1.0\n",
}


def small_repository(folder: Path) -> Path:
    """Return a checkout of one commit, with the files that git knows of here."""
    names = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    (folder / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    output_of("git", "init", "--quiet", "--initial-branch=main", cwd=folder)
    commit(folder, "small")
    return folder


def commit(checkout: Path, text: str) -> None:
    output_of("git", "add", "--all", cwd=checkout)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    output_of("git", *who, "commit", "--quiet", "--message", text, cwd=checkout)


def small_bases(folder: Path) -> dict[str, Path]:
    """Return an archive of a base image for each architecture."""
    folder.mkdir(parents=True)
    return {architecture: _base(folder, architecture) for architecture in ("amd64", "arm64")}


def _base(folder: Path, architecture: str) -> Path:
    files = {**FILES, "var/lib/dpkg/status": DPKG_STATUS.format(architecture=architecture)}
    layer = _tar({name: text.encode() for name, text in files.items()})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"localhost/small:{architecture}"], "Layers": ["layer.tar"]}]
    whole = {"config.json": json.dumps(config).encode(), "layer.tar": layer}
    archive = folder / f"{architecture}.tar"
    archive.write_bytes(_tar({"manifest.json": json.dumps(manifest).encode(), **whole}))
    return archive


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
