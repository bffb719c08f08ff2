"""`make dist`: the files of a release, the plugin from its archive on a machine that has only Python, and installed by krew."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    done = make_dist(ROOT, into)
    assert done.returncode == 0, done.stderr
    return into, json.loads(done.stdout.splitlines()[-1])


def make_dist(
    checkout: Path, into: Path, *options: str, umask: int = 0o022, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/dist.py", "--into", str(into), "--uv", uv(), "--helm", str(install.helm_program())]
    command += ["--python", PYTHON, *options]
    return subprocess.run(
        command, cwd=checkout, env={**os.environ, **more}, umask=umask, capture_output=True, text=True, check=False
    )


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


def copy_of_the_checkout(into: Path) -> Path:
    """Return what git knows of, with this moment as the time of every file; the same commit."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, into / name)
    folder = subprocess.run(
        ["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    (into / ".git").write_text(f"gitdir: {folder}\n", encoding="utf-8")
    return into


def test_a_second_run_elsewhere_writes_the_same_bytes(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    again = tmp_path / "dist"
    cache = subprocess.run([uv(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    elsewhere = {"HOME": str(tmp_path), "UV_CACHE_DIR": cache, "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
    done = make_dist(copy_of_the_checkout(tmp_path / "checkout"), again, umask=0o077, **elsewhere)
    assert done.returncode == 0, done.stderr
    differing = [
        path.name for path in sorted(again.iterdir()) if path.read_bytes() != (made[0] / path.name).read_bytes()
    ]
    assert (differing, {path.name for path in again.iterdir()}) == ([], {path.name for path in made[0].iterdir()})


def test_the_chart_names_a_published_image_by_digest(tmp_path: Path) -> None:
    image = f"registry.example.com/team/brokergroup-operator:0.1.0@sha256:{'a' * 64}"
    done = make_dist(ROOT, tmp_path / "dist", "--image", image)
    assert done.returncode == 0, done.stderr
    [chart] = (tmp_path / "dist").glob("brokergroup-operator-*.tgz")
    assert images_of(chart) == {image}
    mirrored = "mirror.example.com/brokergroup-operator"
    assert images_of(chart, f"image.repository={mirrored}") == {image.replace(image.partition(":")[0], mirrored)}
    by_tag = images_of(chart, f"image.repository={mirrored},image.tag=0.1.0")
    assert by_tag == {f"{mirrored}:0.1.0"}
    unknown = make_dist(ROOT, tmp_path / "none", "--image", image.replace("operator:", "other:"))
    assert unknown.returncode == 1
    assert "no values.yaml has such an image with an empty tag" in unknown.stderr
    shapeless = make_dist(ROOT, tmp_path / "none", "--image", image.partition("@")[0])
    assert "expected REGISTRY/NAME:TAG@sha256:DIGEST" in shapeless.stderr


def images_of(chart: Path, values: str = "") -> set[str]:
    command = [str(install.helm_program()), "template", "operator", str(chart), "--kube-version", "1.35.0"]
    shown = subprocess.run([*command, "--set", values], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].strip('"') for line in shown.splitlines() if line.strip().startswith("image: ")}


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


class Krew:
    """kubectl with the real krew, a krew root of its own, and an index of plugins that has this manifest."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.root, home, self.index = folder / "krew", folder / "home", folder / "index"
        home.mkdir()
        programs = (install.krew_program().parent, install.kubernetes_folder(), self.root / "bin")
        self._environment = {
            "HOME": str(home),
            "KREW_ROOT": str(self.root),
            "KREW_DEFAULT_INDEX_URI": str(self.index),
            "KREW_NO_UPGRADE_CHECK": "1",
            "PATH": os.pathsep.join([*map(str, programs), str(Path(sys.base_prefix) / "bin"), "/usr/bin", "/bin"]),
        }
        self._make_index(manifest)

    def _make_index(self, manifest: dict[str, Any]) -> None:
        (self.index / "plugins").mkdir(parents=True)
        (self.index / "plugins" / "brokergroup.yaml").write_text(json.dumps(manifest), encoding="utf-8")
        author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message", "An index")):
            subprocess.run(["git", *words], cwd=self.index, env=self._environment, check=True)

    def kubectl(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *words], env=self._environment | environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def install(self, manifest: Path, archive: Path) -> subprocess.CompletedProcess[str]:
        return self.kubectl("krew", "install", f"--manifest={manifest}", f"--archive={archive}")

    def has_nothing(self) -> bool:
        """Whether no link, no receipt and no file of a plugin is left."""
        return not any(any((self.root / part).iterdir()) for part in ("bin", "receipts") if (self.root / part).exists())


def manifest_and_archive(into: Path) -> tuple[Path, Path]:
    [archive] = into.glob("kubectl-brokergroup-*.tar.gz")
    return into / "brokergroup.yaml", archive


def read(manifest: Path, **platform: str) -> dict[str, Any]:
    """The manifest, with these fields of its platform changed."""
    found: dict[str, Any] = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    found["spec"]["platforms"][0].update(platform)
    return found


@pytest.mark.real("krew")
def test_krew_installs_it_from_its_manifest_and_takes_it_away(
    made: tuple[Path, dict[str, Any]], bench: Bench, tmp_path: Path
) -> None:
    manifest, archive = manifest_and_archive(made[0])
    krew = Krew(tmp_path, read(manifest))
    assert krew.kubectl("krew", "update").returncode == 0
    installed = krew.install(manifest, archive)
    assert (installed.returncode, "Installed plugin: brokergroup" in installed.stderr) == (0, True), installed.stderr
    assert krew.kubectl("krew", "list").stdout.split() == ["detached/brokergroup"], "of no index"
    assert krew.kubectl("brokergroup", "--version").stdout == f"{made[1]['version']}\n"
    assert "request operations" in krew.kubectl("brokergroup", "--help").stdout
    bench.create_group()
    shown = krew.kubectl("brokergroup", "status", "orders", KUBECONFIG=str(bench.kubeconfig))
    assert shown.stdout.startswith(f"{bench.namespace}/orders   "), shown.stderr
    removed = krew.kubectl("krew", "uninstall", "brokergroup")
    assert (removed.returncode, "Uninstalled plugin: brokergroup" in removed.stderr) == (0, True), removed.stderr
    assert krew.has_nothing()
    assert 'unknown command "brokergroup"' in krew.kubectl("brokergroup", "--version").stderr


@pytest.mark.real("krew")
def test_krew_refuses_an_archive_with_another_checksum(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    manifest, archive = manifest_and_archive(made[0])
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(json.dumps(read(manifest, sha256="0" * 64)), encoding="utf-8")
    krew = Krew(tmp_path, read(manifest))
    refused = krew.install(wrong, archive)
    got = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert refused.returncode == 1
    assert f"checksum does not match, want: {'0' * 64}, got {got}" in refused.stderr
    assert krew.has_nothing()


@pytest.fixture
def downloads(made: tuple[Path, dict[str, Any]]) -> Iterator[str]:
    """The URL of a server that has the files of the release, as a page of downloads."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(made[0]))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.real("krew")
def test_krew_downloads_it_by_its_name_from_an_index(
    made: tuple[Path, dict[str, Any]], downloads: str, tmp_path: Path
) -> None:
    manifest, archive = manifest_and_archive(made[0])
    krew = Krew(tmp_path, read(manifest, uri=f"{downloads}/{archive.name}"))
    installed = krew.kubectl("krew", "install", "brokergroup")
    assert installed.returncode == 0, installed.stderr
    assert krew.kubectl("brokergroup", "--version").stdout == f"{made[1]['version']}\n"
