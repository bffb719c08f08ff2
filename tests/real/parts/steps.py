"""What brings a part into the cache: commands, Debian's packages, Go's builds; a folder is built aside, and renamed when whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What Go builds takes minutes: it leaves the processor to others.
NICE_GO = ("nice", "-n", "10", "go")
PIP_INSTALL = ("python3", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--root-user-action=ignore")
# Parts are brought by two threads, and apt refuses a second one of itself.
one_apt = threading.Lock()


class PartError(Exception):
    """A part cannot be had here; the message says what failed and what would help."""


def cache_folder() -> Path:
    """Where the parts lie: one folder per part and version."""
    return Path(os.environ.get("BROKERGROUP_CACHE") or Path.home() / ".cache" / "brokergroup-operator")


def run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run one command and hand back its output; on failure tell its last lines."""
    print(f"  $ {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise PartError(f"{command[0]}: no such program on this machine") from error
    if done.returncode != 0:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-20:])
        raise PartError(f"{' '.join(command)} ended with exit code {done.returncode}:\n    {tail}")
    return done.stdout


@contextlib.contextmanager
def built_aside(target: Path) -> Iterator[Path]:
    """A fresh folder beside the target that takes its name only when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        aside.chmod(0o755)
        yield aside
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def no_files(*paths: Path) -> str | None:
    absent = [str(path) for path in paths if not path.exists()]
    return f"not built yet: {', '.join(absent)}" if absent else None


def apt_install(*packages: str) -> None:
    """Install Debian packages by name; without root or apt the error has the manual steps."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PartError(f"needs the packages {' '.join(packages)}, and installing them needs root on a Debian machine")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with one_apt:
        run(["apt-get", "update", "-q"], env=quiet)
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], env=quiet)


def unpack_package(name: str) -> None:
    """Unpack a Debian package into the cache, in a folder with its version: not installed, so no service and no account of it."""
    if shutil.which("apt-get") is None:
        raise PartError(f"needs Debian's package {name}, and there is no apt-get here")
    with tempfile.TemporaryDirectory() as download:
        folder = Path(download)
        folder.chmod(0o755)
        try:
            run(["apt-get", "download", "-q", name], cwd=folder)
        except PartError:
            if os.geteuid() != 0:
                raise
            with one_apt:
                run(["apt-get", "update", "-q"])
            run(["apt-get", "download", "-q", name], cwd=folder)
        package = next(folder.glob(f"{name}_*.deb"))
        version = run(["dpkg-deb", "--field", str(package), "Version"]).strip()
        # Without the epoch: a colon ends a field where the kernel learns of an emulator.
        with built_aside(cache_folder() / f"{name}-{version.rpartition(':')[2]}") as aside:
            run(["dpkg", "-x", str(package), str(aside)])


def go_build(module: Path, packages: dict[str, str], target: Path, *, link_flags: str = "") -> None:
    """Build programs of a pinned module into a folder: go.sum in the tree guards what is compiled."""
    flags = ("-mod=readonly", "-trimpath", "-ldflags", f"-s -w {link_flags}")
    with built_aside(target) as aside, tempfile.TemporaryDirectory() as copied:
        source = Path(shutil.copytree(module, Path(copied) / module.name))
        for program, package in packages.items():
            command = [*NICE_GO, "build", *flags, "-o", str(aside / program), package]
            run(command, cwd=source, env={"CGO_ENABLED": "0"})


def go_install(package: str, target: Path) -> None:
    """Build a program of a published module by its version; the module's own go.sum guards what is compiled."""
    with built_aside(target.parent) as aside:
        command = [*NICE_GO, "install", "-trimpath", "-ldflags", "-s -w", package]
        run(command, env={"GOBIN": str(aside), "CGO_ENABLED": "0"})
        [made] = aside.iterdir()
        made.rename(aside / target.name)
