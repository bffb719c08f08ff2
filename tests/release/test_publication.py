"""What a publication refuses before it builds, and what one that ended in the middle leaves. The image is a small one."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.demo.demo_terminal import wait_until_none_is_left
from tests.real.parts import base_images
from tests.real.parts.process import start
from tests.release.publication import (
    CHART,
    NAME,
    Release,
    crane,
    key_pair,
    publish_command,
    publish_environment,
    run_publish,
    uv_program,
)
from tests.release.small import commit, small_bases, small_repository

pytestmark = [
    pytest.mark.real("cosign", "crane", "helm", "package-index", "base-image", "base-image-arm64"),
    pytest.mark.timeout(900),
]


class Small:
    """A repository, its key and base images, and a place of its own in the registry."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.folder, self.registry = folder, registry
        self.checkout = small_repository(folder / "checkout")
        self.key = key_pair(folder / "key")
        self.bases = small_bases(folder / "bases")
        # Programs put their temporary files here.
        self.scratch = folder / "scratch"
        self.scratch.mkdir()

    def publish(self, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        more = {"TMPDIR": str(self.scratch), **more}
        into = self.folder / "dist"
        return run_publish(self.registry, into, self.key, self.bases, *options, checkout=self.checkout, **more)

    def released(self) -> Release:
        done = self.publish()
        assert done.returncode == 0, done.stderr
        return Release(self.registry, self.key, self.folder / "dist", json.loads(done.stdout.splitlines()[-1]))

    def refusal(self, *options: str, **more: str) -> str:
        """Return why nothing was published; nothing is in the registry."""
        done = self.publish(*options, **more)
        assert done.returncode == 1, done.stdout
        assert self.tags() == {}
        return done.stderr

    def tags(self) -> dict[str, list[str]]:
        """Return the tags of each repository of this place, without those of signatures and attestations."""
        host, _, path = self.registry.partition("/")
        names = [name for name in crane("catalog", host).splitlines() if name.startswith(f"{path}/")]
        found = {name.removeprefix(f"{path}/"): crane("ls", f"{host}/{name}").splitlines() for name in names}
        versions = {name: [tag for tag in tags if not tag.startswith("sha256-")] for name, tags in found.items()}
        return {name: tags for name, tags in versions.items() if tags}

    def program(self, name: str, lines: str) -> str:
        """Return a program that runs these lines, then uv."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\n{lines}\nexec {shlex.quote(uv_program())} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def small(registry: str, tmp_path: Path, request: pytest.FixtureRequest) -> Small:
    place = request.node.name.replace("_", "-")[:60].strip("-").lower()
    return Small(tmp_path, f"{registry}/small-{place}")


def test_a_checkout_with_changes_is_refused(small: Small) -> None:
    (small.checkout / "README.md").write_text("changed\n", encoding="utf-8")
    assert "README.md: not committed" in small.refusal()


def test_a_commit_that_the_source_does_not_have_is_refused(small: Small, tmp_path: Path) -> None:
    """The provenance would name a repository that does not have the commit."""
    source = tmp_path / "source.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", small.checkout, source], check=True)
    (small.checkout / "README.md").write_text("changed\n", encoding="utf-8")
    commit(small.checkout, "not pushed")
    told = small.refusal(GIT_CONFIG_KEY_0=f"url.{source}.insteadOf")
    assert "no branch or tag" in told


def test_a_wrong_password_is_refused_before_anything_is_built(small: Small) -> None:
    told = small.refusal(COSIGN_PASSWORD="wrong")
    assert "cosign.key" in told
    assert " pull " not in told


@pytest.mark.parametrize("given", ["amd64", "arm=docker-archive:x.tar"])
def test_a_base_image_of_no_known_architecture_is_refused(small: Small, given: str) -> None:
    assert f"--base-image {given}: expected ARCHITECTURE=IMAGE" in small.refusal(f"--base-image={given}")


@pytest.fixture(scope="module")
def whole(registry: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Small, Release]:
    small = Small(tmp_path_factory.mktemp("whole"), f"{registry}/whole")
    return small, small.released()


def test_a_version_is_published_once(whole: tuple[Small, Release]) -> None:
    """A tag that has moved is another release under the same name."""
    small, release = whole
    version = release.told["version"]
    before = {
        one.removeprefix(f"{small.registry}/").partition(":")[0]: one.partition("@")[2]
        for one in [*release.told["images"].values(), *release.told["charts"]]
    }
    assert set(before) == {NAME, f"{NAME}-sla", "charts/brokergroup-operator", "charts/rocketmq-cluster"}
    assert {name: crane("digest", f"{small.registry}/{name}:{version}") for name in before} == before
    again = small.publish()
    assert again.returncode == 1
    assert f"{small.registry}/{NAME}:{version} exists" in again.stderr
    assert {name: crane("digest", f"{small.registry}/{name}:{version}") for name in before} == before


def test_an_older_release_under_a_newer_tag_is_refused(whole: tuple[Small, Release]) -> None:
    """Its signature is good, whatever its tag: no signature is of a tag."""
    release = whole[1]
    crane("tag", release.image, "9.9.9")
    newer = Release(release.registry, release.key, release.files, {**release.told, "version": "9.9.9"})
    [chart] = [one for one in release.told["charts"] if f"/{CHART}:" in one]
    crane("tag", chart.replace(f":{release.told['version']}@", "@"), "9.9.9")
    for what in ("a published image", "a published chart"):
        assert newer.verify_as_documented(what).returncode != 0
    done = release.verify_as_documented("a published image")
    assert (done.returncode, '"gitCommit"' in done.stdout) == (0, True), done.stderr


def test_another_image_of_the_release_under_this_name_is_refused(whole: tuple[Small, Release], registry: str) -> None:
    """It has the same signer."""
    release = whole[1]
    there, tag = f"{registry}/swapped", str(release.told["version"])
    for name in crane("ls", f"{release.registry}/{NAME}-sla").splitlines():
        crane("copy", f"{release.registry}/{NAME}-sla:{name}", f"{there}/{NAME}:{name}")
    assert tag in crane("ls", f"{there}/{NAME}").splitlines()
    assert release.at(there).verify_as_documented("a published image").returncode != 0


def test_a_publication_that_ends_in_the_middle_tags_no_image_and_a_second_one_repairs_it(small: Small) -> None:
    """It ends after images and charts were pushed, at the first attestation of contents, for which it asks uv."""
    ends = small.program("ends", 'case "$(tr "\\0" " " < /proc/$PPID/cmdline)" in *publish.py*) exit 9;; esac')
    done = small.publish("--uv", ends)
    assert (done.returncode, "exit code 9" in done.stderr) == (1, True), done.stderr
    assert NAME not in small.tags()
    assert f"{NAME}-sla" not in small.tags()
    there = small.released()
    for what in ("a published image", "a published chart", "published files"):
        verified = there.verify_as_documented(what)
        assert verified.returncode == 0, verified.stderr


def test_only_cosign_gets_the_password_and_the_workflows_token(small: Small, tmp_path: Path) -> None:
    """uv runs build programs of other projects, which could sign as this one."""
    seen = tmp_path / "seen"
    uv = small.program("spy", f"env >> {shlex.quote(str(seen))}")
    secrets = {"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "token", "SIGSTORE_ID_TOKEN": "token"}
    done = small.publish("--uv", uv, **secrets)
    assert done.returncode == 0, done.stderr
    names = {line.partition("=")[0] for line in seen.read_text(encoding="utf-8").splitlines()}
    assert "PATH" in names
    assert names & {*secrets, "COSIGN_PASSWORD"} == set()


def test_a_publication_that_is_terminated_leaves_neither_files_nor_mounts_nor_an_emulator(small: Small) -> None:
    waits = small.folder / "waits-now"
    uv = small.program("waits", f"touch {shlex.quote(str(waits))}; sleep 600")
    command = publish_command(
        small.registry, small.folder / "dist", small.key, small.bases, "--uv", uv, checkout=small.checkout
    )
    environment = {**publish_environment(small.checkout), "TMPDIR": str(small.scratch)}
    program = start("publish", command, log=small.folder / "publish.log", env=environment)
    try:
        program.wait_until(waits.exists, what="it asks uv for the wheel", deadline_seconds=300.0)
        assert (base_images.BINFMT / base_images.ARM64_NAME).exists()
        program.signal(signal.SIGTERM)
        assert program.process.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        program.stop()
    assert not (base_images.BINFMT / base_images.ARM64_NAME).exists()
    assert str(small.scratch) not in Path("/proc/mounts").read_text(encoding="utf-8")
    assert [path.name for path in small.scratch.iterdir() if path.is_dir()] == []
    wait_until_none_is_left(small.scratch)
