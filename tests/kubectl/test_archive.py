"""`make dist`: the files of a release, and the plugin from its archive on a machine that has only Python."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import install

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
pytestmark = [pytest.mark.real("helm"), pytest.mark.real("package-index"), pytest.mark.timeout(600)]


def uv() -> str:
    beside = ROOT / ".tools" / "uv" / "bin" / "uv"
    return str(beside) if beside.exists() else "uv"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder, and the last line of standard output."""
    into = tmp_path_factory.mktemp("dist")
    command = [sys.executable, ".ci/dist.py", "--into", str(into), "--uv", uv(), "--helm", str(install.helm_program())]
    done = subprocess.run([*command, "--python", PYTHON], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plugin(made: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, and reached through a link, as krew does it."""
    [archive] = made[0].glob("kubectl-brokergroup-*.tar.gz")
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    link = place / "link"
    link.symlink_to(place / "kubectl-brokergroup" / "kubectl-brokergroup")
    return link


def run(plugin: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Under the bare interpreter: no site-packages of this or any other environment."""
    python = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    return subprocess.run(
        [str(python), "-I", "-S", str(plugin), *arguments],
        env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_what_is_made(made: tuple[Path, dict[str, Any]]) -> None:
    into, told = made
    version = told["version"]
    names = {
        f"brokergroup_operator-{version}-py3-none-any.whl", f"kubectl-brokergroup-{version}-linux-amd64.tar.gz",
        f"brokergroup-operator-{version}.cdx.json", "brokergroup.yaml",
        *(f"{chart.parent.name}-{version}.tgz" for chart in (ROOT / "charts").glob("*/Chart.yaml")),
    }  # fmt: skip
    assert {path.name for path in into.iterdir()} == {*names, "SHA256SUMS"}
    assert told["files"] == {name: (into / name).stat().st_size for name in names}
    lines = (into / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {name: hashlib.sha256((into / name).read_bytes()).hexdigest() for name in names}
    [entry] = yaml.safe_load((into / "brokergroup.yaml").read_text(encoding="utf-8"))["spec"]["platforms"]
    assert entry["sha256"] == sums[entry["uri"].rpartition("/")[2]]
    with tarfile.open(into / entry["uri"].rpartition("/")[2]) as tar:
        assert tar.getmember(entry["bin"]).mode == 0o755
    components = json.loads((into / f"brokergroup-operator-{version}.cdx.json").read_text(encoding="utf-8"))[
        "components"
    ]
    assert {"kopf", "aiohttp", "kubernetes", "pykube-ng"} <= {item["name"] for item in components}
    assert not {"pytest", "pyspark", "mypy"} & {item["name"] for item in components}


def test_the_wheel_is_whole(made: tuple[Path, dict[str, Any]]) -> None:
    [wheel] = made[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as whole:
        top = {name.split("/")[0] for name in whole.namelist() if ".dist-info" not in name}
        [entry_points] = [name for name in whole.namelist() if name.endswith("entry_points.txt")]
        scripts = whole.read(entry_points).decode()
    assert top == {
        "brokergroup_operator",
        "controller_core",
        "kube_sandbox",
        "metric_names",
        "rocketmq_remoting",
        "rocketmq_replica",
        "sla_reports",
    }
    assert "kubectl-brokergroup = brokergroup_operator.kubectl.main:main" in scripts


def test_the_plugin_needs_nothing_else(plugin: Path, bench: Bench, made: tuple[Path, dict[str, Any]]) -> None:
    assert run(plugin, "--version").stdout == f"{made[1]['version']}\n"
    bench.create_group()
    kubeconfig = str(bench.kubeconfig)
    shown = run(plugin, "status", "orders", KUBECONFIG=kubeconfig)
    assert shown.stdout.startswith(f"{bench.namespace}/orders   "), shown.stderr
    assert "created" in run(plugin, "switchover", "orders", "--deadline", "30s", KUBECONFIG=kubeconfig).stdout
    target = str(bench.folder / "report.tar.gz")
    assert run(plugin, "report", "orders", "-f", target, KUBECONFIG=kubeconfig).returncode == 0
    assert run(plugin, "status", "nowhere", KUBECONFIG=kubeconfig).returncode == 3
    wrong = run(plugin, "switchover", "orders", "--timeout", "soon", KUBECONFIG=kubeconfig)
    assert (wrong.returncode, "expected a duration" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [("generate", "orders"), ("migrate", "plan")])
def test_what_it_cannot_do_it_says(plugin: Path, arguments: tuple[str, ...]) -> None:
    done = run(plugin, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {arguments[0]} needs the whole package: pip install brokergroup-operator")
