"""What several checks do: patch a group, ask the plugin, wait for the operator, and act under load."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from tests.node.bench import STEADY_SECONDS, Bench, CheckError, Group, Seen, expect
from tests.node.cluster import OPERATOR_NAMESPACE
from tests.node.kubectl import environment, kubectl, until
from tests.node.places import REPOSITORY
from tests.node.processes import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable

RELEASE = "brokergroup-operator"
EXAMPLES = REPOSITORY / "examples"


def wait_for_operator() -> None:
    kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", f"statefulset/{RELEASE}", "--timeout=120s", seconds=130)


def change(group: Group, spec: dict[str, Any]) -> float:
    """Patch the spec; return the seconds until the status is about it."""
    kubectl("patch", "brokergroup", group.name, "--type=merge", "-p", json.dumps({"spec": spec}))
    wanted, began = group.read()["metadata"]["generation"], time.monotonic()
    until("the change is observed", lambda: group.status().get("observedGeneration", 0) >= wanted, 60, 0.1)
    return round(time.monotonic() - began, 1)


def plugin(*words: str) -> subprocess.CompletedProcess[str]:
    """`kubectl brokergroup …`; the caller looks at the exit code."""
    program = REPOSITORY / ".venv" / "bin" / "kubectl-brokergroup"
    return subprocess.run(
        [str(program), *words], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def under_load(bench: Bench, name: str, act: Callable[[], None]) -> dict[Group, Seen]:
    """Run a fault of all groups under load: afterwards they are whole, and no acknowledged message is lost."""
    groups = list(bench.groups.values())
    before = {group: Seen.of(bench, group) for group in groups}
    loads = [bench.start_load(group, name) for group in groups]
    time.sleep(STEADY_SECONDS)
    began = time.time()
    act()
    wrong = []
    for group, load in zip(groups, loads, strict=True):
        try:
            group.wait_until_whole()
            bench.end_load(load, group, name, began=began)
        except (CheckError, NodeError) as error:
            wrong.append(str(error))
    expect(not wrong, "; ".join(wrong))
    return before
