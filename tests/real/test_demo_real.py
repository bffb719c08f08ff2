"""`make demo-real ONCE=1` as a user runs it: Java brokers, a NameServer and the Java producer; two failovers, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 540


@pytest.mark.real("java", "rocketmq", "netns")
@pytest.mark.timeout(600)
def test_the_demo_with_java_brokers_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "brokergroup_operator.cli.main", "demo", "--implementation", "Java", "--once"]
    with (tmp_path / "stderr").open("wb") as errors:
        done = subprocess.run(
            [*command, "--directory", str(tmp_path / "demo")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    told = (tmp_path / "stderr").read_text(encoding="utf-8", errors="replace")[-4000:]
    assert done.returncode == 0, (done.stdout, told)
    verdict = json.loads(done.stdout.splitlines()[-1])
    killed, frozen = verdict["failovers"]
    assert verdict["lost"] == 0
    assert verdict["acked"] > 200
    assert (killed["outcome"], frozen["outcome"]) == ("completed", "completed")
    assert killed["to"] == frozen["from"]
    assert (frozen["trigger"], frozen["unfenced"]) == ("silence", False)
    assert verdict["final_master"] == frozen["to"]
    assert verdict["epochs"] == sorted(set(verdict["epochs"]))
    for failover in (killed, frozen):
        steps = failover["steps_ms"]
        assert (
            steps["detected"] <= steps["decided"] <= steps["committed"] <= steps["role_changed"] <= steps["first_ack"]
        )
