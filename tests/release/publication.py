"""A release published by `.ci/publish.py` into a registry of this machine, and what users and attackers do with it.

The registry is crane's own, on loopback; the signatures are by a key made here.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.parts import base_images, install
from tests.support.page_blocks import page_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tasks" / "install.md"
PARTS = ("cosign", "crane", "helm", "package-index", "base-image", "base-image-arm64")
SOURCE = "https://git.example.com/team/brokergroup-operator"
BUILDER = "https://git.example.com/team/builders/1"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
COMMAND_SECONDS = 300.0
# A verification with a key asks nothing of the network: what it asked would be refused here.
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "COSIGN_PASSWORD": ""}
# Emulated, on a machine that may be busy.
PUBLISH_SECONDS = 4000.0
NAME, CHART = "brokergroup-operator", "charts/brokergroup-operator"
# Where cosign 2 keeps what belongs to an image: a tag of the image's digest.
SIGNATURE, ATTESTATION = "sig", "att"


@dataclass(frozen=True)
class Release:
    """What was published below `registry`; `key` is the folder of cosign's key pair, `files` what `make dist` makes."""

    registry: str
    key: Path
    files: Path
    told: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.told["images"]["operator"]).partition("@")[2]

    @property
    def image(self) -> str:
        return f"{self.registry}/{NAME}@{self.digest}"

    def at(self, registry: str) -> Release:
        """Return the same release in another registry."""
        return Release(registry, self.key, self.files, self.told)

    def platform_digest(self, architecture: str) -> str:
        return crane("digest", f"--platform=linux/{architecture}", self.image)

    def attestation(self, kind: str, image: str) -> dict[str, Any]:
        """Return the verified statement of this kind."""
        checked = cosign("verify-attestation", *self.trust(), f"--type={kind}", image)
        [envelope] = [json.loads(line) for line in checked.splitlines()]
        return statement_of(envelope)

    def trust(self) -> list[str]:
        return [f"--key={self.key / 'cosign.pub'}", "--insecure-ignore-tlog"]

    def verify_as_documented(self, what: str, *, key: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the page's commands of this name, with this key's public half as the signer."""
        [block] = [
            one for one in page_blocks(PAGE.read_text(encoding="utf-8")) if one.how == "run" and one.what == what
        ]
        signer = f"--key={(key or self.key) / 'cosign.pub'} --insecure-ignore-tlog"
        variables = {"REGISTRY": self.registry, "TAG": str(self.told["version"]), "SIGNER": signer}
        programs = (install.cosign_program(), install.crane_program(), install.helm_program())
        path = os.pathsep.join([*(str(program.parent) for program in programs), os.environ["PATH"]])
        with tempfile.TemporaryDirectory() as scratch:
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.commands],
                cwd=self.files if "SHA256SUMS" in block.commands else scratch,
                env={**os.environ, **OFFLINE, **variables, "PATH": path},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            )  # fmt: skip


def publish(registry: str, folder: Path) -> Release:
    """Publish the commit of HEAD: the operator's image for both architectures, the charts and the files."""
    key = key_pair(folder / "key")
    archives = {"amd64": base_images.base_image_archive(), "arm64": base_images.arm64_base_image_archive()}
    head = output_of("git", "rev-parse", "HEAD")
    done = run_publish(registry, folder / "dist", key, archives, "--target", "operator")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["commit"] == head
    return Release(registry, key, folder / "dist", told)


def run_publish(
    registry: str, into: Path, key: Path, archives: dict[str, Path], *options: str, checkout: Path = ROOT, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a checkout's program to its end."""
    return subprocess.run(
        publish_command(registry, into, key, archives, *options, checkout=checkout),
        cwd=checkout,
        env={**os.environ, **publish_environment(checkout), **more},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PUBLISH_SECONDS, check=False,
    )  # fmt: skip


def publish_command(
    registry: str, into: Path, key: Path, archives: dict[str, Path], *options: str, checkout: Path
) -> list[str]:
    words = ["--registry", registry, "--plain-http", "--source", SOURCE, "--builder", BUILDER, "--into", str(into)]
    words += [f"--base-image={architecture}=docker-archive:{path}" for architecture, path in archives.items()]
    words += ["--key", str(key / "cosign.key"), "--uv", uv_program()]
    program = str(checkout / ".ci" / "publish.py")
    return [sys.executable, program, *words, *options, "--", "--python", PYTHON]


def uv_program() -> str:
    here = ROOT / ".tools" / "uv" / "bin" / "uv"
    return str(here) if here.exists() else "uv"


def publish_environment(checkout: Path) -> dict[str, str]:
    """Return variables by which git finds SOURCE in the checkout, and cosign the key's password."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{checkout}.insteadOf",
        "GIT_CONFIG_VALUE_0": SOURCE,
        "COSIGN_PASSWORD": "",
    }


def key_pair(folder: Path) -> Path:
    """Return the folder, with a new key pair of cosign in it, without a password."""
    folder.mkdir(parents=True)
    cosign("generate-key-pair", cwd=folder)
    return folder


def mirror(release: Release, registry: str) -> Release:
    """Copy the operator's image with all that belongs to it."""
    there = release.at(registry)
    for tag in crane("ls", f"{release.registry}/{NAME}").splitlines():
        crane("copy", f"{release.registry}/{NAME}:{tag}", f"{registry}/{NAME}:{tag}")
    return there


def belonging(release: Release, digest: str, what: str) -> str:
    """Return the reference of an image's signatures or attestations."""
    return f"{release.registry}/{NAME}:{digest.replace(':', '-')}.{what}"


def statement_of(envelope: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def crane(*words: str) -> str:
    return output_of(str(install.crane_program()), *words)


def cosign(*words: str, cwd: Path = ROOT) -> str:
    return output_of(str(install.cosign_program()), *words, cwd=cwd)


def output_of(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **OFFLINE},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.strip()
