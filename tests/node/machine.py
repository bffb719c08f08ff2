"""The machine's settings that a cluster may change: recorded before its start and after its end, and restored.

The kubelet sets kernel parameters of the whole machine (`vm.overcommit_memory`, `kernel.panic`, …) and does not restore them.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tests.node.places import state_folder
from tests.node.processes import command

Snapshot = dict[str, dict[str, str]]
# Counters and clocks that change by themselves, as parts of names below /proc/sys.
MOVING = (
    "random/",
    "dentry-state",
    "file-nr",
    "inode-",
    "aio-nr",
    "ns_last_pid",
    "nf_conntrack_count",
    "pty/nr",
    "quota/syncs",
)
SETTINGS = Path("/proc/sys")


def snapshot() -> Snapshot:
    """Names and values by kind."""
    return {
        "link": {entry["ifname"]: " ".join(entry["flags"]) for entry in ip("link")},
        "address": {f"{entry['ifname']} {one['local']}": "" for entry in ip("addr") for one in entry["addr_info"]},
        "route": {f"{entry['dst']} {entry.get('gateway', '')} {entry['dev']}": "" for entry in ip("route")},
        "network namespace": {entry["name"]: "" for entry in ip("netns")},
        "mount": {line.split()[1]: line.split()[0] for line in Path("/proc/mounts").read_text().splitlines()},
        "cgroup": {str(path): "" for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()},
        "nftables": {line: "" for line in command("nft", "list", "ruleset").splitlines() if line.strip()},
        "kernel parameter": kernel_parameters(),
    }


def ip(what: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(command("ip", "-json", what) or "[]")
    return answer


def kernel_parameters() -> dict[str, str]:
    values = {}
    for path in SETTINGS.rglob("*"):
        name = str(path.relative_to(SETTINGS))
        if path.is_file() and not any(part in name for part in MOVING):
            # Some can only be written, some only be read with rights that root has not here.
            with contextlib.suppress(OSError, UnicodeDecodeError):
                values[name] = path.read_text().strip()
    return values


def snapshot_file() -> Path:
    return state_folder() / "machine-before.json"


def remember() -> None:
    """Before anything is changed; a second `up` of the same cluster keeps the first one's."""
    if not snapshot_file().exists():
        snapshot_file().parent.mkdir(parents=True, exist_ok=True)
        snapshot_file().write_text(json.dumps(snapshot()), encoding="utf-8")


def remembered() -> Snapshot:
    """Return the remembered settings; empty if no cluster has started."""
    if not snapshot_file().exists():
        return {}
    found: Snapshot = json.loads(snapshot_file().read_text(encoding="utf-8"))
    return found


def put_back() -> list[str]:
    """Restore kernel parameters; hand back every difference that is left."""
    before = remembered()
    if not before:
        return []
    for name, value in kernel_parameters().items():
        if name in before["kernel parameter"] and before["kernel parameter"][name] != value:
            with contextlib.suppress(OSError):
                (SETTINGS / name).write_text(before["kernel parameter"][name])
    left = differences(before, snapshot())
    snapshot_file().unlink()
    return left


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """One line each. A parameter that is new belongs to a kernel module that was loaded: it is no change of a setting."""
    told = []
    for kind, values in before.items():
        now = after[kind]
        told += [f"{kind} {name} is gone" for name in values if name not in now]
        told += [
            f"{kind} {name}: {value!r}, now {now[name]!r}"
            for name, value in values.items()
            if now.get(name, value) != value
        ]
        if kind != "kernel parameter":
            told += [f"{kind} {name} is new" for name in now if name not in values]
    return told
