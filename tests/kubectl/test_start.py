"""A person waits for the plugin to start: what it must not bring along. Modules are counted, not milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench

# What the operator and the other commands need, and what only draws.
HEAVY = {
    "aiohttp", "kopf", "kubernetes", "msgspec", "prometheus_client", "pyspark", "rich", "structlog", "uvloop",
    "controller_core", "kube_sandbox", "metric_names", "rocketmq_remoting", "rocketmq_replica", "sla_reports",
}  # fmt: skip
OURS = {"api", "kubectl", "option_groups"}
PROGRAM = """
import json, sys
from brokergroup_operator.kubectl.main import app
try:
    app(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def modules(bench: Bench, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"KUBECONFIG": str(bench.kubeconfig), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(found)


@pytest.mark.parametrize(
    "arguments", [("status", "orders"), ("status",), ("top", "--once"), ("switchover", "orders"), ("pause", "orders")]
)
def test_a_verb_brings_nothing_heavy(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.create_group()
    loaded = modules(bench, *arguments)
    assert "pykube.http" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    ours = {name.split(".")[1] for name in loaded if name.startswith("brokergroup_operator.")}
    assert ours <= OURS


def test_help_asks_no_cluster_and_needs_no_client(bench: Bench) -> None:
    loaded = modules(bench, "--help")
    assert "typer" in loaded
    assert not {"pykube", "requests", "yaml"} & {name.partition(".")[0] for name in loaded}
