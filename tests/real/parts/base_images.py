"""Images without a daemon or a registry: the stand-in for the Dockerfile's base, for this machine and 64-bit ARM, as archives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.parts.steps import PartError, built_aside, cache_folder, run

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBIAN_RELEASE = "bookworm"
BASE_IMAGE = f"localhost/brokergroup-base:{DEBIAN_RELEASE}"
BASE_IMAGE_ARM64 = f"localhost/brokergroup-base-arm64:{DEBIAN_RELEASE}"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
ARM64_NAME = "brokergroup-arm64"
# The ELF header of a 64-bit program for ARM, and which of its bits count (Linux, Documentation/admin-guide/binfmt-misc.rst).
ARM64_MAGIC = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
ARM64_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def base_image_archive() -> Path:
    """The image that stands in for the Dockerfile's base, as a docker archive."""
    return cache_folder() / f"base-image-{DEBIAN_RELEASE}" / "image.tar"


def arm64_base_image_archive() -> Path:
    """The same for 64-bit ARM."""
    return cache_folder() / f"base-image-arm64-{DEBIAN_RELEASE}" / "image.tar"


def install_base_image() -> None:
    with image_store() as folder:
        make_base_root(folder / "debian")
        commit_base_image(folder, BASE_IMAGE, base_image_archive())


def install_arm64_base_image() -> None:
    with arm64_programs_run(), image_store() as folder:
        make_base_root(folder / "debian", "arm64")
        commit_base_image(folder, BASE_IMAGE_ARM64, arm64_base_image_archive(), "--arch", "arm64")


def make_base_root(root: Path, architecture: str | None = None) -> None:
    """Debian with its own Python and pip, as the image that it stands in for has them. Default: this machine's architecture."""
    packages = "python3,python3-pip,python3-venv,ca-certificates"
    options = ["--variant=minbase", f"--include={packages}", *([f"--arch={architecture}"] if architecture else [])]
    run(["nice", "debootstrap", *options, DEBIAN_RELEASE, str(root), debian_mirror()])
    # The official image lets pip install beside Debian's packages.
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    for leftover in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")]:
        leftover.unlink()
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    # Which certificates and which mirrors this machine trusts, the builds in this image trust too.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")


def commit_base_image(folder: Path, name: str, archive: Path, *settings: str) -> None:
    """Make an image of `folder`/debian, as an archive."""
    certificates, store = "/etc/ssl/certs/ca-certificates.crt", folder / "store"
    variables = [f"SSL_CERT_FILE={certificates}", f"PIP_CERT={certificates}", "PATH=/usr/local/bin:/usr/sbin:/usr/bin"]
    environment = [word for variable in variables for word in ("--env", variable)]
    with built_aside(archive.parent) as aside:
        container = buildah(store, "from", "scratch").strip()
        buildah(store, "add", "-q", container, str(folder / "debian"), "/")
        buildah(store, "config", *environment, *settings, "--cmd", "python3", container)
        buildah(store, "commit", "-q", container, name)
        buildah(store, "rm", container)
        buildah(store, "push", name, f"docker-archive:{aside / 'image.tar'}:{name}")


def debian_mirror() -> str:
    """The mirror from which this machine has its own packages."""
    sources = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    return next((uri for uri in sources if uri.rstrip("/").endswith("/debian")), "http://deb.debian.org/debian")


def buildah(store: Path, *arguments: str) -> str:
    """Run buildah on an image store of its own, without a daemon."""
    environment = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "overlay")}
    return run(["buildah", "--root", str(store / "root"), "--runroot", str(store / "run"), *arguments], env=environment)


@contextlib.contextmanager
def image_store() -> Iterator[Path]:
    """A store for one build, which leaves an archive and nothing else."""
    with tempfile.TemporaryDirectory(prefix="brokergroup-images-") as folder:
        store = Path(folder)
        try:
            yield store
        finally:
            remove_store(store / "store")


def remove_store(store: Path) -> None:
    """Overlay layers stay mounted where a build was killed."""
    with contextlib.suppress(PartError):
        buildah(store, "umount", "--all")
    shutil.rmtree(store, ignore_errors=True)


def arm64_emulator() -> Path | None:
    """Debian's qemu-aarch64-static in the cache; None if it is not there."""
    return max(cache_folder().glob("qemu-user-static-*/usr/bin/qemu-aarch64-static"), default=None)


@contextlib.contextmanager
def arm64_programs_run() -> Iterator[None]:
    """Let the kernel run ARM programs by QEMU for the length of a block, in every root: the kernel holds the emulator open.

    Needs root. One block at a time on a machine. Takes away afterwards what it set, also what a killed process left.
    """
    emulator = arm64_emulator()
    if emulator is None:
        raise PartError("no qemu-aarch64-static in the cache; expected the part qemu-arm64")
    # Not in the cache or TMPDIR: there may be several of those, and the machine has one kernel.
    with Path("/run", f"{ARM64_NAME}.lock").open("w") as lock, contextlib.ExitStack() as undo:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (BINFMT / "register").exists():
            run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
            undo.callback(run, ["umount", str(BINFMT)])
        forget_arm64_emulator()
        undo.callback(forget_arm64_emulator)
        # F: opened now, so that no root needs the file; P: the program sees the name by which it was called.
        entry = f":{ARM64_NAME}:M::{ARM64_MAGIC}:{ARM64_MASK}:{emulator}:PF"
        (BINFMT / "register").write_text(entry, encoding="ascii")
        yield


def forget_arm64_emulator() -> None:
    if (BINFMT / ARM64_NAME).exists():
        (BINFMT / ARM64_NAME).write_text("-1", encoding="ascii")
