#!/usr/bin/env python3
"""What a release has, made from this checkout into a folder: `make dist`. The release workflow runs the same.

    wheel                   brokergroup_operator-VERSION-py3-none-any.whl
    each chart of charts/   NAME-VERSION.tgz, by helm; with --image its default is that image, by digest
    the kubectl plugin      kubectl-brokergroup-VERSION-PLATFORM.tar.gz: it and its few libraries; needs a Python, nothing else
    krew's manifest of it   brokergroup.yaml
    SBOM                    brokergroup-operator-VERSION.cdx.json, CycloneDX from uv.lock
    checksums of all        SHA256SUMS

A second run of the same commit writes the same bytes.

What the plugin's libraries are is resolved within uv.lock. One of them (pydantic-core) is compiled: an archive is for one
platform, and carries that library for each of the Pythons named. The last line of standard output is JSON; exit code 1, and why,
if a version does not agree. Standard library only; uv and helm are programs.
"""

from __future__ import annotations

import argparse
import email
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = "kubectl-brokergroup"
# What the plugin imports, beside its own packages (tests/kubectl/test_main.py holds that it is no more).
PLUGIN_NEEDS = ("typer", "pykube-ng", "requests", "pyyaml")
PLUGIN_PACKAGES = tuple(
    f"brokergroup_operator/{part}" for part in ("__init__.py", "json_object.py", "option_groups.py", "api/", "kubectl/")
)
PYTHONS = ("3.11", "3.12", "3.13")
# Ours: krew's selector, and uv's name of the platform.
PLATFORMS = {
    "linux-amd64": ({"os": "linux", "arch": "amd64"}, "x86_64-manylinux_2_28"),
    "linux-arm64": ({"os": "linux", "arch": "arm64"}, "aarch64-manylinux_2_28"),
    "darwin-amd64": ({"os": "darwin", "arch": "amd64"}, "x86_64-apple-darwin"),
    "darwin-arm64": ({"os": "darwin", "arch": "arm64"}, "aarch64-apple-darwin"),
}
LAUNCHER = f"""#!/usr/bin/env python3
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("error: {PLUGIN}: this is Python %d.%d, expected 3.11 or newer" % sys.version_info[:2])
sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from brokergroup_operator.kubectl.main import main

main()
"""
# No release has been published: until one is, --archive of `kubectl krew install` names the file.
NOWHERE = "https://releases.invalid/brokergroup-operator"
# A published image: NAME:TAG@sha256:DIGEST.
PUBLISHED = re.compile(r"(?P<repository>[^@\s]+/(?P<name>[^/:@\s]+)):(?P<tag>[\w.-]+@sha256:[0-9a-f]{64})")


class DistError(Exception):
    """What could not be made, or does not agree; for a person."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="emptied first")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--helm", default="helm")
    parser.add_argument(
        "--platform", action="append", choices=sorted(PLATFORMS), help="repeatable; default: linux-amd64"
    )
    parser.add_argument("--python", action="append", help=f"repeatable; default: {', '.join(PYTHONS)}")
    parser.add_argument("--download-url", default=NOWHERE, help="where the files of this release will lie")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME:TAG@DIGEST",
        help="a published image, which the chart then names; repeatable",
    )
    arguments = parser.parse_args()
    try:
        print(json.dumps(Dist(arguments).make()))  # noqa: T201
    except (DistError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or "").strip()
        sys.exit(f"dist: {error}" + (f"\n{said[-2000:]}" if said else ""))


class Dist:
    """One run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.into: Path = arguments.into.resolve()
        self.uv: str = arguments.uv
        self.helm: str = arguments.helm
        self.platforms: list[str] = arguments.platform or ["linux-amd64"]
        self.pythons: list[str] = arguments.python or list(PYTHONS)
        self.url: str = arguments.download_url.rstrip("/")
        self.images: list[str] = arguments.image
        self.version = str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
        self.commit_seconds = int(self._run("git", "log", "-1", "--format=%ct").stdout or 0)

    def make(self) -> dict[str, object]:
        shutil.rmtree(self.into, ignore_errors=True)
        self.into.mkdir(parents=True)
        wheel = self._wheel()
        charts = self._charts()
        archives = {platform: self._plugin(wheel, platform) for platform in self.platforms}
        self._krew(archives)
        self._sbom()
        files = sorted(path for path in self.into.iterdir())
        sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in files)
        (self.into / "SHA256SUMS").write_text(sums, encoding="utf-8")
        self._versions_agree(wheel, charts)
        return {"version": self.version, "files": {path.name: path.stat().st_size for path in files}}

    def _run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **more}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)  # noqa: S603

    def _wheel(self) -> Path:
        self._run(
            self.uv,
            "build",
            "--quiet",
            "--wheel",
            "--out-dir",
            str(self.into),
            SOURCE_DATE_EPOCH=str(self.commit_seconds),
        )
        for extra in self.into.glob(".gitignore"):
            extra.unlink()
        [wheel] = self.into.glob("*.whl")
        return wheel

    def _charts(self) -> list[Path]:
        packages, pinned = [], set()
        for chart in sorted((ROOT / "charts").glob("*/Chart.yaml")):
            with tempfile.TemporaryDirectory() as folder:
                copied = Path(shutil.copytree(chart.parent, Path(folder) / chart.parent.name))
                pinned |= self._pin_images(copied / "values.yaml")
                self._run(self.helm, "package", str(copied), "--destination", str(self.into))
            package = self.into / f"{chart.parent.name}-{self.version}.tgz"
            with tarfile.open(package) as tar:
                files = {entry.name: file.read() for entry in tar if (file := tar.extractfile(entry))}
            # helm writes the files' times, which differ from checkout to checkout.
            package.write_bytes(_archive(files, self.commit_seconds))
            packages.append(package)
        if without := set(self.images) - pinned:
            raise DistError(f"--image {', '.join(sorted(without))}: no values.yaml has such an image with an empty tag")
        return packages

    def _pin_images(self, values: Path) -> set[str]:
        """Write the published images into a chart's values, and return those that it has."""
        text, pinned = values.read_text(encoding="utf-8"), set()
        for image in self.images:
            if (found := PUBLISHED.fullmatch(image)) is None:
                raise DistError(f"--image {image}: expected REGISTRY/NAME:TAG@sha256:DIGEST")
            unpinned = rf'(?m)^( *)repository: {re.escape(found["name"])}\n((?: *#.*\n)*)\1tag: ""$'
            text, count = re.subn(unpinned, rf"\1repository: {found['repository']}\n\2\1tag: {found['tag']}", text)
            if count:
                pinned.add(image)
        values.write_text(text, encoding="utf-8")
        return pinned

    def _plugin(self, wheel: Path, platform: str) -> Path:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / PLUGIN
            self._libraries(place / "lib", platform)
            with zipfile.ZipFile(wheel) as whole:
                for name in whole.namelist():
                    if name.startswith(PLUGIN_PACKAGES) or re.match(r"[^/]+\.dist-info/(METADATA|licenses/)", name):
                        whole.extract(name, place / "lib")
            (place / PLUGIN).write_text(LAUNCHER, encoding="utf-8")
            (place / PLUGIN).chmod(0o755)
            shutil.copy(ROOT / "LICENSE", place)
            target = self.into / f"{PLUGIN}-{self.version}-{platform}.tar.gz"
            files = {
                str(path.relative_to(folder)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
            }
            target.write_bytes(_archive(files, self.commit_seconds))
        return target

    def _libraries(self, lib: Path, platform: str) -> None:
        """As uv.lock has them, for the first Python whole; for the others what is compiled for them."""
        locked = self._run(
            self.uv,
            "export",
            "--quiet",
            "--frozen",
            "--no-default-groups",
            "--no-emit-project",
            "--no-hashes",
            "--no-annotate",
        ).stdout
        constraints = lib.parent.parent / "locked.txt"
        constraints.write_text(locked, encoding="utf-8")
        for python in self.pythons:
            target = lib.parent.parent / python
            self._run(
                self.uv, "pip", "install", "--quiet", "--target", str(target), "--constraint", str(constraints),
                "--only-binary", ":all:", "--python-version", python, "--python-platform", PLATFORMS[platform][1],
                *PLUGIN_NEEDS,
            )  # fmt: skip
            for compiled in [*target.rglob("*.so"), *target.rglob("*.pyd")]:
                # PyYAML and charset-normalizer do without; what cannot is for each Python.
                if compiled.parent.name != "pydantic_core":
                    compiled.unlink()
            if not lib.exists():
                # RECORD has checksums of the scripts in bin, which name the Python of this machine.
                left_out = shutil.ignore_patterns("bin", "__pycache__", "tests", ".lock", "RECORD")
                shutil.copytree(target, lib, ignore=left_out)
            for compiled in (target / "pydantic_core").glob("*.so"):
                shutil.copy(compiled, lib / "pydantic_core")

    def _krew(self, archives: dict[str, Path]) -> None:
        """JSON is YAML; krew reads it so."""
        manifest = {
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": "brokergroup"},
            "spec": {
                "version": f"v{self.version}",
                "shortDescription": "Look at RocketMQ broker groups, switch over, explain",
                "description": "Looks at the broker groups of brokergroup-operator, and asks for what is done to them.",
                "caveats": "Needs Python 3.11 or newer on the PATH as python3.",
                "platforms": [
                    {
                        "selector": {"matchLabels": PLATFORMS[platform][0]},
                        "uri": f"{self.url}/{archive.name}",
                        "sha256": _sha256(archive),
                        "bin": f"{PLUGIN}/{PLUGIN}",
                    }
                    for platform, archive in archives.items()
                ],
            },
        }
        (self.into / "brokergroup.yaml").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")

    def _sbom(self) -> None:
        command = (self.uv, "export", "--quiet", "--frozen", "--no-default-groups", "--format", "cyclonedx1.5")
        found = json.loads(self._run(*command, "--preview-features", "sbom-export").stdout)
        if not found.get("components"):
            raise DistError("the SBOM has no components")
        # uv draws a number and tells the time for each.
        del found["serialNumber"]
        found["metadata"]["timestamp"] = datetime.fromtimestamp(self.commit_seconds, UTC).isoformat()
        target = self.into / f"brokergroup-operator-{self.version}.cdx.json"
        target.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    def _versions_agree(self, wheel: Path, charts: list[Path]) -> None:
        """Asked of the files themselves."""
        with zipfile.ZipFile(wheel) as whole:
            [name] = [name for name in whole.namelist() if name.endswith(".dist-info/METADATA")]
            found = {"wheel": str(email.message_from_bytes(whole.read(name))["Version"])}
        for chart in charts:
            shown = self._run(self.helm, "show", "chart", str(chart)).stdout
            for field in ("version", "appVersion"):
                [value] = re.findall(rf"^{field}: *(\S+)$", shown, re.MULTILINE)
                found[f"{chart.name}: {field}"] = value.strip("\"'")
        wrong = {what: value for what, value in found.items() if value != self.version}
        if wrong:
            raise DistError(f"pyproject.toml says version {self.version}, but: {wrong}")


def _archive(files: dict[str, bytes], seconds: int) -> bytes:
    """Return a tar.gz that depends on nothing but names, contents and the commit's time."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), seconds
            entry.mode = 0o755 if Path(name).name == PLUGIN else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
