"""The workflow files: checks that need no run on the service."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lanes import PROOFS
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
    # A tag can be moved, and what runs in the release could sign as this repository.
    version = "[0-9a-f]{40}" if path.name == "release.yaml" else r"v\d+"
    assert [name for name in uses if not re.fullmatch(rf"[\w-]+/[\w-]+@{version}", name)] == []


def test_the_proofs_leave_out_the_lanes_that_need_nodes_of_cgroup_v1() -> None:
    """GitHub's runners have cgroup v2 alone, which `tests/node` refuses."""
    text = (ROOT / ".github" / "workflows" / "proofs.yaml").read_text(encoding="utf-8")
    (left_out,) = re.findall(r"jq -c '\. - (\[.*?\])'", text)
    assert json.loads(left_out) == [lane.name for lane in PROOFS if "node-packages" in lane.parts]


def test_the_release_workflow_has_no_second_way_to_build_publish_or_sign() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    done = [step for step in steps(WORKFLOWS[-1]) if "make release" in step.get("run", "")]
    assert len(done) == 1
    assert (
        re.findall(
            r"docker|buildx|buildah|helm|cosign|attest-",
            "\n".join(step.get("uses", "") for step in steps(WORKFLOWS[-1])),
        )
        == []
    )
    assert re.findall(r"(?m)^ +(?:docker|buildah|helm|cosign) ", text) == []


def test_the_options_of_make_release_in_the_workflow_are_known() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    [words] = re.findall(r'make release ARGUMENTS="([^"]+)"', text)
    publish, dist = words.split(" -- ")
    for options, program in ((publish, "publish.py"), (dist, "dist.py")):
        known = (ROOT / ".ci" / program).read_text(encoding="utf-8")
        named = re.findall(r"--[a-z-]+", options)
        assert named
        assert [name for name in named if f'"{name}"' not in known] == []
    platforms = re.findall(r"--platform (\S+)", dist)
    assert len(platforms) == 4
    assert all(f'"{platform}"' in (ROOT / ".ci" / "dist.py").read_text(encoding="utf-8") for platform in platforms)


def test_the_documented_signer_is_the_workflow_at_the_tag_that_is_installed() -> None:
    """A pattern for all tags would accept an older release in the place of this one."""
    page = (ROOT / "docs" / "tasks" / "install.md").read_text(encoding="utf-8")
    signers = re.findall(r'(?m)^export SIGNER="(.+)"$', page)
    identities = [re.findall(r"--certificate-identity(\S*) (\S+)", signer) for signer in signers]
    workflow = f"https://github.com/OWNER/brokergroup-operator/{WORKFLOWS[-1].relative_to(ROOT)}@refs/tags/v$TAG"
    assert [one for one in identities if one] == [[("", workflow)]]
    [with_identity] = [signer for signer in signers if "--certificate-identity" in signer]
    assert "insecure" not in with_identity


def test_the_dockerfile_has_the_arguments_and_targets_that_are_published() -> None:
    program = (ROOT / ".ci" / "publish.py").read_text(encoding="utf-8")
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    arguments = re.findall(r"--build-arg=([A-Z_]+)=", program)
    assert arguments == ["PYTHON_IMAGE", "VERSION"]
    assert all(f"ARG {name}=" in dockerfile for name in arguments)
    [targets] = re.findall(r"(?m)^TARGETS = \{(.+)\}$", program)
    names = re.findall(r'"(\w+)": \(', targets)
    assert names == ["operator", "sla"]
    assert all(re.search(rf"^FROM \S+ AS {name}$", dockerfile, re.MULTILINE) for name in names)


@pytest.mark.real("actionlint")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(
        [str(install.actionlint_program()), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
