"""How much memory the whole operator takes: a process of its own with both planes, at several numbers of groups.

    .venv/bin/python benchmarks/operator_memory.py [--groups 100,300,1000]

The embedded API, in a process of its own too, has settled groups of three (`reconcile_groups.py`); their brokers send no
heartbeats. Progress on stderr, one line of JSON on stdout; exit 0 only if the chart's limit holds. benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import yaml  # noqa: E402

from benchmarks.reconcile import Server, say  # noqa: E402
from tests.support.places import free_port  # noqa: E402

VALUES: Final = ROOT / "charts" / "brokergroup-operator" / "values.yaml"
# In so long the operator wrote nothing: it has looked at every group.
REST_SECONDS: Final = 15.0
LONGEST_WAIT_SECONDS: Final = 3600.0
# Of the limit, for what a measurement at rest does not have: a roll of many groups, the live page's readers.
SHARE_OF_LIMIT: Final = 0.75


async def measured(count: int, folder: Path) -> dict[str, int]:
    """MiB of an operator with so many groups, at rest and at most."""
    async with Server.with_groups(count) as server:
        cluster = {"name": "a", "cluster": {"server": server.url}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        config = {"clusters": [cluster], "users": [{"name": "a", "user": {}}], "contexts": [context]}
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps({"current-context": "a", **config}), encoding="utf-8")
        address = f"127.0.0.1:{free_port()}"
        arguments = ["--kubeconfig", str(kubeconfig), "--listen", address, "--controller-address", address]
        arguments += ("--namespace", "default", "--page-listen", f"127.0.0.1:{free_port()}", "--page-access", "open")
        with (folder / "operator.log").open("w", encoding="utf-8") as log:
            operator = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
                [sys.executable, "-m", "brokergroup_operator.cli.main", "operator", *arguments], stdout=log, stderr=log
            )
        try:
            await _rest(server, operator)
            return memory_of(operator.pid)
        finally:
            operator.terminate()
            operator.wait()


async def _rest(server: Server, operator: subprocess.Popen[bytes]) -> None:
    """Return when the operator has written, and then writes no more."""
    wrote, quiet_since_seconds = 0, time.monotonic()
    end = quiet_since_seconds + LONGEST_WAIT_SECONDS
    while not wrote or time.monotonic() - quiet_since_seconds < REST_SECONDS:
        if time.monotonic() > end:
            raise TimeoutError(f"the operator still writes after {LONGEST_WAIT_SECONDS} s")
        if operator.poll() is not None:
            raise RuntimeError(f"the operator has ended with exit code {operator.returncode}")
        await asyncio.sleep(1.0)
        if writes := (await server.tell("counts"))["writes"]:
            wrote, quiet_since_seconds = wrote + writes, time.monotonic()
    say(f"{wrote} writes until it was at rest")


def memory_of(pid: int) -> dict[str, int]:
    """MiB that the process holds, and the most that it held."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    kib = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in lines)
        if name in ("VmRSS", "VmHWM")
    }
    return {"at_rest": kib["VmRSS"] // 1024, "peak": kib["VmHWM"] // 1024}


def limit_mib() -> int:
    """The chart's default limit."""
    limit = str(yaml.safe_load(VALUES.read_text(encoding="utf-8"))["resources"]["limits"]["memory"])
    return int(limit[:-2]) * {"Mi": 1, "Gi": 1024}[limit[-2:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="100,300,1000", help="sizes, separated by commas")
    sizes = sorted(int(size) for size in parser.parse_args().groups.split(","))
    by_size: dict[int, dict[str, int]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            by_size[size] = asyncio.run(measured(size, Path(folder)))
        say(f"{size} groups: {by_size[size]['at_rest']} MiB at rest, {by_size[size]['peak']} MiB at most")
    figures: dict[str, Any] = {"mib": {str(size): found for size, found in by_size.items()}, "limit_mib": limit_mib()}
    if len(sizes) > 1:
        first, last = by_size[sizes[0]]["peak"], by_size[sizes[-1]]["peak"]
        figures["mib_per_100_groups"] = round(100 * (last - first) / (sizes[-1] - sizes[0]), 1)
    figures["broken"] = [
        f"{size} groups took {found['peak']} MiB, more than {SHARE_OF_LIMIT} of the chart's limit"
        for size, found in by_size.items()
        if size <= 1000 and found["peak"] > SHARE_OF_LIMIT * figures["limit_mib"]
    ]
    print(json.dumps(figures))
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
