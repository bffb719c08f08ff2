"""The workflow files: checks that need no run on the service."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.parts import install

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def test_the_gate_the_proofs_and_releases_have_one_each() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yaml", "proofs.yaml", "release.yaml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_calls_is_there(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(step["run"] for step in steps(path) if "run" in step)
    targets = re.findall(r"^\s*make ([\w-]+)", text, re.MULTILINE)
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    scripts = re.findall(r"^\s*(\.ci/\S+)", text, re.MULTILINE)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    assert targets or scripts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_few_rights_and_ends(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())
    uses = [step["uses"] for step in steps(path) if "uses" in step]
    assert [name for name in uses if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", name)] == []


def test_the_options_of_make_dist_and_of_the_image_are_known() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    program = (ROOT / ".ci" / "dist.py").read_text(encoding="utf-8")
    platforms = re.findall(r"--platform (\S+)", text)
    assert len(platforms) == 4
    assert all(f'"{platform}"' in program for platform in platforms)
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    arguments = re.findall(r"^ +([A-Z_]+)=\$\{\{", text, re.MULTILINE)
    assert arguments == ["PYTHON_IMAGE", "VERSION"]
    assert all(f"ARG {name}=" in dockerfile for name in arguments)
    [base] = re.findall(r"^  BASE: (\S+)$", text, re.MULTILINE)
    assert f"ARG PYTHON_IMAGE={base}\n" in dockerfile
    for target in re.findall(r"\{target: (\w+),", text):
        assert re.search(rf"^FROM \S+ AS {target}$", dockerfile, re.MULTILINE)


@pytest.mark.real("actionlint")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(
        [str(install.actionlint_program()), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
