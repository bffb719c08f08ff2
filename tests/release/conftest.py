"""The published release, and the image for ARM as it is pulled: one of each for the whole run."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.real.parts import install
from tests.real.parts.base_images import arm64_programs_run
from tests.real.parts.process import start
from tests.release.publication import Release, crane, mirror, publish
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of an empty registry on loopback."""
    folder, address = tmp_path_factory.mktemp("registry"), f"127.0.0.1:{free_port()}"
    (folder / "blobs").mkdir()
    command = [str(install.crane_program()), "registry", "serve", "--address", address, "--disk", str(folder / "blobs")]
    program = start("registry", command, log=folder / "registry.log")
    try:
        program.wait_until(lambda: "serving" in program.tail(), what="it serves")
        yield address
    finally:
        program.stop()


@pytest.fixture(scope="session")
def published(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return publish(f"{registry}/team", tmp_path_factory.mktemp("published"))


@pytest.fixture
def mirrored(registry: str, published: Release, request: pytest.FixtureRequest) -> Release:
    """The release in a place of the test's own, to be changed there."""
    return mirror(published, f"{registry}/{request.node.name.replace('_', '-')[:60].strip('-').lower()}")


@pytest.fixture(scope="session")
def image(published: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image for ARM, pulled by digest and unpacked, while the kernel runs ARM programs."""
    root = tmp_path_factory.mktemp("arm64")
    archive = root.with_suffix(".tar")
    crane("export", f"{published.registry}/brokergroup-operator@{published.platform_digest('arm64')}", str(archive))
    subprocess.run(
        ["tar", "--extract", "--numeric-owner", "--file", str(archive), "--directory", str(root)], check=True
    )
    archive.unlink()
    # pytest makes the folder for root alone; in a container the root of the file system is open to its user.
    root.chmod(0o755)
    with arm64_programs_run():
        yield root
