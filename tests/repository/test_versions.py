"""One version: wheel, command, plugin, chart, image label and the image that the operator gives to Python replicas."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from brokergroup_operator.cli.operator_command import DEFAULT_REPLICA_IMAGE

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize("module", ["brokergroup_operator.cli.main", "brokergroup_operator.kubectl.main"])
def test_each_command_tells_it(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"


@pytest.mark.parametrize("chart", sorted((ROOT / "charts").glob("*/Chart.yaml")), ids=lambda path: path.parent.name)
def test_each_chart_has_it(chart: Path) -> None:
    found = yaml.safe_load(chart.read_text(encoding="utf-8"))
    assert (found["version"], found["appVersion"]) == (VERSION, VERSION)


def test_the_image_has_it_and_is_called_by_it() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^ARG VERSION=(\S+)$", dockerfile, re.MULTILINE)) == {VERSION}
    assert dockerfile.count('org.opencontainers.image.version="${VERSION}"') == dockerfile.count(
        "org.opencontainers.image.title"
    )
    assert DEFAULT_REPLICA_IMAGE.rpartition(":")[2] == VERSION


def test_the_lock_has_it() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert [item["version"] for item in lock["package"] if item["name"] == "brokergroup-operator"] == [VERSION]
