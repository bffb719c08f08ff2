"""The images of the nodes: ours, from the unchanged Dockerfile, the Java brokers', and the pause image.

There is no registry. buildah builds with the stand-in base image of the cached parts; containerd takes archives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.node.kubectl import helm_template
from tests.node.places import REPOSITORY, Node, images_folder, nodes
from tests.node.worker import PAUSE_IMAGE, ctr
from tests.real.parts import base_images, install

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILT_NAME = "localhost/brokergroup-operator:built"
# The same image by another tag: what an upgrade goes to.
NEXT_TAG = "next"
KEEP_ARCHIVES = 6
MIB = 1 << 20


def source_files(checkout: Path) -> list[Path]:
    """Return the files that the Dockerfile copies, by .dockerignore, and the Dockerfile itself."""
    lines = (checkout / ".dockerignore").read_text(encoding="utf-8").splitlines()
    files = [checkout / "Dockerfile"]
    for name in (line[1:] for line in lines if line.startswith("!")):
        found = [checkout / name] if (checkout / name).is_file() else sorted((checkout / name).rglob("*"))
        files += [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return files


def digest(checkout: Path, arguments: tuple[str, ...]) -> str:
    """Return an image's name by all its sources."""
    whole = hashlib.sha256(repr(arguments).encode())
    for path in source_files(checkout):
        whole.update(f"{path.relative_to(checkout)}\0{os.access(path, os.X_OK)}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


@contextlib.contextmanager
def one_build() -> Iterator[Path]:
    """The store of layers that stays for the next build; one build at a time."""
    images_folder().mkdir(parents=True, exist_ok=True)
    with (images_folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield images_folder() / "store"


def operator_archive(checkout: Path = REPOSITORY, *arguments: str) -> Path:
    """Our image as an archive; built when no archive of the same source is there. `arguments` go to buildah."""
    archive = images_folder() / f"operator-{digest(checkout, arguments)}.tar"
    with one_build() as store:
        if not archive.exists():
            build(store, checkout, archive, arguments)
        archive.touch()
        drop_old_archives()
    return archive


def build(store: Path, checkout: Path, archive: Path, arguments: tuple[str, ...]) -> None:
    """From the Dockerfile unchanged: the base is an argument of it, for sites with their own."""
    if base_images.BASE_IMAGE not in base_images.buildah(store, "images", "--format", "{{.Name}}:{{.Tag}}"):
        base_images.buildah(store, "pull", "-q", f"docker-archive:{base_images.base_image_archive()}")
    command = ["bud", "-q", "--layers", "--pull-never", "--network", "host"]
    command += ["--build-arg", f"PYTHON_IMAGE={base_images.BASE_IMAGE}", *arguments, "-t", BUILT_NAME, str(checkout)]
    base_images.buildah(store, *command)
    aside = archive.with_suffix(".aside")
    aside.unlink(missing_ok=True)
    base_images.buildah(store, "push", "-q", BUILT_NAME, f"docker-archive:{aside}:{BUILT_NAME}")
    aside.rename(archive)


def drop_old_archives() -> None:
    archives = sorted(images_folder().glob("operator-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for archive in archives[KEEP_ARCHIVES:]:
        archive.unlink()


def pause_archive() -> Path:
    archive = images_folder() / "pause-1.tar"
    with one_build() as store, tempfile.TemporaryDirectory() as folder:
        if not archive.exists():
            shutil.copy(install.pause_program(), folder)
            text = 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
            (Path(folder) / "Dockerfile").write_text(text, encoding="utf-8")
            base_images.buildah(store, "bud", "-q", "--network", "host", "-t", PAUSE_IMAGE, folder)
            aside = archive.with_suffix(".aside")
            base_images.buildah(store, "push", "-q", PAUSE_IMAGE, f"docker-archive:{aside}:{PAUSE_IMAGE}")
            aside.rename(archive)
    return archive


def full_name(image: str) -> str:
    """An image's name as containerd knows it: with registry and, at Docker's, with `library`."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if first == "localhost" or "." in first or ":" in first else f"docker.io/{image}"


def names_in_chart() -> list[str]:
    """Return our image's default names in the chart of this checkout."""
    workloads = [document for document in yaml.safe_load_all(helm_template()) if document]
    [pod] = [one["spec"]["template"]["spec"] for one in workloads if one["kind"] in ("StatefulSet", "Deployment")]
    return sorted({container["image"] for container in pod["containers"]})


def operator_names() -> list[str]:
    """Every name under which our image is on the nodes: the chart's, README's local one, and each for an upgrade."""
    names = [full_name(name) for name in names_in_chart()]
    tags = [name.rpartition(":")[2] for name in names]
    names += [f"localhost/brokergroup-operator:{tag}" for tag in tags]
    return [*names, *(f"{name.rpartition(':')[0]}:{NEXT_TAG}" for name in names)]


def bring(operator: Path) -> None:
    """All images into all nodes."""
    names = operator_names()
    archives = (pause_archive(), operator, install.java_image_archive())
    with ThreadPoolExecutor(len(nodes())) as side_by_side:
        list(side_by_side.map(lambda node: bring_into(node, archives, names), nodes()))


def bring_into(node: Node, archives: tuple[Path, ...], names: list[str]) -> None:
    """Those that the node did not get last; our image's archive has the digest of its source in its name."""
    had = node.store / "archives"
    seen = had.read_text(encoding="utf-8").split() if had.exists() else []
    for archive in archives:
        if str(archive) not in seen:
            ctr(node, "images", "import", str(archive))
    had.write_text("\n".join(map(str, archives)), encoding="utf-8")
    for name in names:
        ctr(node, "images", "tag", "--force", BUILT_NAME, name)


def image_mib(archive: Path) -> int:
    """Unpacked, as it lies on a node."""
    return round(archive.stat().st_size / MIB)
