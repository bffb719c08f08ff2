"""The command itself: what it brings along at its start, its verbs, completion, generate, version, migrate."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import yaml

from brokergroup_operator.kubectl.cluster import BrokerGroup, Pod
from brokergroup_operator.kubectl.main import complete, verb_names
from tests.kubectl.generate_cases import ACCEPTED, REFUSED, REFUSED_IDS

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench


# Modules that only the operator, the other commands, or drawing need.
HEAVY = {
    "aiohttp", "kopf", "kubernetes", "msgspec", "prometheus_client", "pyspark", "rich", "structlog", "uvloop",
    "controller_core", "kube_sandbox", "metric_names", "rocketmq_remoting", "rocketmq_replica", "sla_reports",
}  # fmt: skip
OURS = {"api", "json_object", "kubectl", "option_groups"}
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


@pytest.mark.parametrize("arguments", ACCEPTED)
def test_what_is_generated_is_accepted(bench: Bench, arguments: tuple[str, ...]) -> None:
    manifest = yaml.safe_load(bench.must("generate", "orders", "-n", bench.namespace, *arguments))
    made = bench.api("POST", f"{bench.path(BrokerGroup)}?fieldValidation=Strict", manifest)
    assert made["metadata"]["name"] == "orders"


@pytest.mark.parametrize(("group", "arguments", "field"), REFUSED, ids=REFUSED_IDS)
def test_what_an_api_server_would_refuse_is_not_generated(
    bench: Bench, group: str, arguments: tuple[str, ...], field: str
) -> None:
    said = bench.run("generate", group, *arguments)
    assert (said.code, said.out) == (2, "")
    assert f"an API server would refuse it: {field}: " in said.err


def test_a_namespace_that_cannot_be_is_not_generated_either(bench: Bench) -> None:
    said = bench.run("generate", "orders", "-n", "my.namespace")
    assert said.code == 2
    assert "metadata.namespace: " in said.err


def test_versions(bench: Bench) -> None:
    assert bench.must("version", "--client").split() == ["plugin", version("brokergroup-operator")]
    lines = bench.must("version").splitlines()
    assert [line.split()[0] for line in lines] == ["plugin", "operator", "kubernetes"]
    # The release's name does not matter (tests/real/test_chart.py checks the label in the chart).
    labels = {
        "app.kubernetes.io/name": "somebody-elses-choice",
        "brokergroup.dev/component": "operator",
        "app.kubernetes.io/version": "0.9.9",
    }
    bench.create(Pod, "operator-0", metadata={"labels": labels}, spec={"containers": [{"name": "o", "image": "o:1"}]})
    try:
        assert "0.9.9" in bench.must("version", "-o", "json")
    finally:
        bench.api("DELETE", bench.path(Pod, "operator-0"))


def test_completion_knows_verbs_options_and_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    bench.create_group()
    bench.create_group("other", status={})
    assert complete(["sw"]) == ["switchover"]
    assert set(complete([""])) == set(verb_names())
    assert complete(["status", "o"]) == ["orders", "other"]
    assert complete(["status", "-n", "default", ""]) == []
    assert complete(["status", "--namespace=" + bench.namespace, "ot"]) == ["other"]
    assert "--kill-master" in complete(["drill", "--"])
    assert complete(["status", "orders", ""]) == []
    assert complete(["version", ""]) == []
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert complete(["status", "--context", "none", ""]) == []


def test_the_completion_program_runs_the_plugin(bench: Bench) -> None:
    assert bench.must("completion").splitlines()[-1] == 'exec kubectl-brokergroup __complete "$@"'


def test_migrate_is_the_other_commands(bench: Bench) -> None:
    said = bench.run("migrate", "plan", "--help")
    assert said.code == 0
    assert "--controller" in said.out


def test_the_verbs_are_those_that_are_promised() -> None:
    assert verb_names() == [
        "backup", "completion", "dashboard", "decommission", "drill", "elect", "explain", "generate", "hibernate", "history", "lag",
        "migrate", "pause", "rebuild", "release", "report", "restart", "resume", "status", "switchover", "top", "version",
        "wake",
    ]  # fmt: skip
