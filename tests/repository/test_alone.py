"""One proof at a time on a machine, also where it is called by its own target of the Makefile."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import run
from tests.lanes import PROOFS
from tests.repository.made import ROOT
from tests.support import alone

# A lock name of this test process, independent of a real proof on this machine.
NAME = f"brokergroup-tests-alone-{os.getpid()}"
ALONE = f"from tests.support import alone; alone.NAME = {NAME!r}; import sys; alone.main(sys.argv[1:])"
HOLDS = "print('runs', flush=True); input()"


def start(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ALONE, sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def test_the_second_is_refused_until_the_first_has_ended() -> None:
    first = start(HOLDS)
    assert first.stdout is not None
    assert first.stdout.readline() == "runs\n"
    second = start(HOLDS)
    assert "another proof" in second.communicate(timeout=60)[1]
    assert second.returncode == 1
    first.kill()
    first.communicate(timeout=60)
    assert start(HOLDS).communicate("\n", timeout=60) == ("runs\n", "")


def test_what_the_program_leaves_behind_does_not_keep_the_machine() -> None:
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    left = int(start(leaves).communicate(timeout=60)[0])
    try:
        assert start("print('runs')").communicate(timeout=60)[0] == "runs\n"
    finally:
        os.kill(left, 9)


def test_the_proofs_are_refused_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "hold_name", lambda _name: None)
    monkeypatch.setattr(run, "run_proofs", lambda *_, **__: pytest.fail("they began"))
    with pytest.raises(SystemExit, match="another proof"):
        run.main(["--proofs"])


def test_each_target_with_a_proof_s_real_parts_runs_alone() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    with_parts = {" ".join(lane.command[1:]).removeprefix("-m ") for lane in PROOFS if lane.parts and not lane.tests}
    commands = [*with_parts, "tests.node.cluster up", "demo --implementation Java"]
    recipes = [line for line in makefile.splitlines() if line.startswith("\t") and any(one in line for one in commands)]
    assert len(recipes) >= 12
    assert [line for line in recipes if not re.match(r"\t@\$\(ALONE\) ", line)] == []
