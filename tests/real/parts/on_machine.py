"""What the machine itself has to have for real parts: programs on the path, root, network namespaces, a package index."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

MINIMUM_JAVA = 17
# Kubernetes 1.35 is content with 1.25; the newest CSI sidecars, built against its 1.37, are not.
MINIMUM_GO = (1, 26)
# Debian packages of a node and its images, each by a file of the package or a program on the path.
NODE_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ipset": "ipset",
    "nft": "nftables",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}


def no_program(name: str, hint: str = "") -> str | None:
    return None if shutil.which(name) else f"no {name} on the path{hint}"


def java_missing() -> str | None:
    version = first_version(["javac", "-version"], r"javac (\d+)")
    if version is None:
        return f"no javac on the path (a JDK {MINIMUM_JAVA} or newer is needed)"
    return None if version[0] >= MINIMUM_JAVA else f"JDK {version[0]} is here, {MINIMUM_JAVA} or newer is needed"


def go_missing() -> str | None:
    version = first_version(["go", "version"], r"go(\d+\.\d+)")
    needed = ".".join(map(str, MINIMUM_GO))
    if version is None:
        return f"no go on the path ({needed} or newer is needed)"
    return None if version >= MINIMUM_GO else f"go {'.'.join(map(str, version))} is here, {needed} or newer is needed"


def first_version(command: list[str], pattern: str) -> tuple[int, ...] | None:
    """The version that a program prints of itself, as numbers; None if it is not here."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout + done.stderr)
    return tuple(int(number) for number in found.group(1).split(".")) if found else None


def node_packages_missing() -> str | None:
    absent = [
        package for program, package in NODE_PACKAGES.items() if not (shutil.which(program) or Path(program).is_file())
    ]
    return f"Debian's packages {' '.join(absent)} are not here" if absent else None


def package_index_missing() -> str | None:
    """Whether pip gets an answer about a package that this project uses, and a virtual environment can be made."""
    if importlib.util.find_spec("ensurepip") is None:
        return "python3 has no ensurepip (Debian's python3-venv)"
    command = ["python3", "-m", "pip", "--disable-pip-version-check", "--retries", "1", "index", "versions", "uv"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"pip gets no answer from its index: {done.stderr.strip()[-200:]}"


def root_missing() -> str | None:
    return None if os.geteuid() == 0 else "not running as root"


def netns_missing() -> str | None:
    """Network namespaces are there only if one can be made: try it."""
    if os.geteuid() != 0:
        return "not running as root"
    if shutil.which("ip") is None:
        return "no ip on the path (Debian's iproute2)"
    name = f"bgprobe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"ip netns add failed: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None
