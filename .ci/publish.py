#!/usr/bin/env python3
"""Publish a release into a registry: `make release`. The release workflow runs the same.

    images          REGISTRY/brokergroup-operator and -sla, an index of one image for each architecture, built from the Dockerfile
    charts          REGISTRY/charts/NAME, by helm; the operator's chart names the images by digest
    files           what `make dist` makes, with the signature of SHA256SUMS beside it
    list of contents of each image: CycloneDX, from the image itself (image_contents.py); an attestation of that image
    provenance      SLSA 1.0, of each index, chart and of SHA256SUMS: source and commit, base images, uv.lock, builder
    signatures      by cosign, of each index with its images, of each chart and of SHA256SUMS

With --key (a private key of cosign; its password is in COSIGN_PASSWORD) nothing leaves for a transparency log. Without it cosign
signs as the identity of the workflow that it runs in, and the public log has the signature.
The commit of HEAD is published, from a clone of its own. Refused are changes that are not committed, a commit at which --source has
no branch or tag, and a version whose image is in the registry already.
The tags of images come last, after all signatures. A run that ended before has left images without a tag and perhaps charts; the
next run replaces those.
The last line of standard output is JSON: what was published, by digest. Exit code 1, and why, if a step fails.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from image_contents import ContentsError, add_contents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.real.parts import install  # noqa: E402
from tests.real.parts.base_images import arm64_programs_run, buildah, image_store  # noqa: E402
from tests.real.parts.steps import PartError, run  # noqa: E402

# The Dockerfile's targets: the name of the image, and the extras of uv.lock in it.
TARGETS = {"operator": ("brokergroup-operator", ()), "sla": ("brokergroup-operator-sla", ("--extra", "sla"))}
ARCHITECTURES = ("amd64", "arm64")
BUILD_TYPE = "make-release/v1"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PROVENANCE, CONTENTS = "slsaprovenance1", "cyclonedx"
# Variables by which a program could sign: uv and buildah run programs of others.
SECRETS = ("COSIGN_", "SIGSTORE_", "ACTIONS_ID_TOKEN_")
# What a registry says of a tag that it does not have.
NOT_FOUND = re.compile(r"MANIFEST_UNKNOWN|NAME_UNKNOWN|404 Not Found")


class PublishError(Exception):
    """What could not be published; for a person."""


@dataclass(frozen=True)
class Base:
    """The base image of one architecture, in the store of this build."""

    architecture: str
    source: str
    name: str
    digest: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", required=True, help="host and path, as ghcr.io/OWNER")
    parser.add_argument("--source", required=True, help="URL of the repository that has the commit")
    parser.add_argument("--builder", required=True, help="URI of the workflow or machine that runs this")
    parser.add_argument("--key", type=Path, help="cosign's private key; default: the workflow's identity")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="repeatable; default: each")
    parser.add_argument(
        "--base-image",
        action="append",
        default=[],
        metavar="ARCHITECTURE=IMAGE",
        help="with its transport, as docker-archive:FILE; default: the Dockerfile's, by its tag",
    )
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="for the files; emptied first")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("dist", nargs="*", metavar="-- OPTION", help="further options of .ci/dist.py")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with contextlib.ExitStack() as stack:
            publication = Publication(arguments, stack.enter_context(image_store()))
            publication.check()
            if platform.machine() != "aarch64":
                stack.enter_context(arm64_programs_run())
            print(json.dumps(publication.publish()))  # noqa: T201
    except (PublishError, ContentsError, PartError, OSError) as error:
        sys.exit(f"publish: {error}")


def _terminate(number: int, _frame: FrameType | None) -> None:
    """End what was started, also by programs of ours, and leave by way of everything that takes away what was set."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in list(_descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    sys.exit(128 + number)


def _descendants(process: int) -> Iterator[int]:
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, thread.read_text(encoding="ascii").split()):
                yield from _descendants(child)
                yield child


class Publication:
    """One run. `folder` has a store of images, and goes with it."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.registry: str = arguments.registry.rstrip("/")
        self.source: str = arguments.source
        self.builder: str = arguments.builder
        self.into: Path = arguments.into.resolve()
        # Absolute, for it runs in the clone.
        self.uv = str(Path(shutil.which(arguments.uv) or arguments.uv).resolve())
        self.targets: list[str] = arguments.target or list(TARGETS)
        self.dist_options: list[str] = arguments.dist
        self.key = [f"--key={arguments.key.resolve()}", "--tlog-upload=false"] if arguments.key else []
        self.plain_http: bool = arguments.plain_http
        self.secrets = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SECRETS)}
        self.given_bases = _given_bases(arguments.base_image)
        self.started = datetime.now(UTC)
        self.store, self.checkout, self.folder = folder / "store", folder / "checkout", folder
        run(["git", "clone", "--quiet", str(ROOT), str(self.checkout)])
        self.commit = run(["git", "rev-parse", "HEAD"], cwd=self.checkout).strip()
        project = tomllib.loads((self.checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self.version = str(project["version"])

    def check(self) -> None:
        """Raise PublishError for what no one should publish, before anything is built."""
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT).splitlines()
        if changed:
            raise PublishError(
                f"{', '.join(line[3:] for line in changed)}: not committed, expected a checkout without changes"
            )
        refs = [
            line.split()
            for line in run(["git", "ls-remote", self.source], cwd=ROOT, env={"GIT_TERMINAL_PROMPT": "0"}).splitlines()
        ]
        if self.commit not in {words[0] for words in refs if words}:
            raise PublishError(
                f"--source {self.source}: no branch or tag of it is at HEAD, {self.commit}; expected it to be pushed"
            )
        for name in (self._image(target) for target in self.targets):
            if self._exists(name):
                raise PublishError(f"{name} exists, expected a version that is not published yet")
        if self.key:
            # Fails with a wrong password.
            self._cosign("public-key", self.key[0])

    def publish(self) -> dict[str, object]:
        self.bases = [self._base(architecture) for architecture in ARCHITECTURES]
        # Everything is built before the first push: a build that fails leaves the registry as it was.
        for target in self.targets:
            self._build(target)
        images = {target: self._push(target) for target in self.targets}
        self._dist(images)
        charts = [self._push_chart(package) for package in sorted(self.into.glob("*.tgz"))]
        provenance = self._write("provenance.json", self._provenance())
        for reference in (*images.values(), *charts):
            self._cosign("sign", "--yes", "--recursive", *self._key_and_registry(), _by_digest(reference))
            self._attest(_by_digest(reference), PROVENANCE, provenance)
        for target, image in images.items():
            self._attest_contents(target, image)
        self._sign_files(provenance)
        # Last: an image with a tag has all that belongs to it.
        for image in images.values():
            self._crane("tag", _by_digest(image), self.version)
        return {"version": self.version, "commit": self.commit, "images": images, "charts": charts}

    def _image(self, target: str) -> str:
        return f"{self.registry}/{TARGETS[target][0]}:{self.version}"

    def _exists(self, name: str) -> bool:
        try:
            self._crane("digest", name)
        except PublishError as error:
            if NOT_FOUND.search(str(error)):
                return False
            raise
        return True

    def _base(self, architecture: str) -> Base:
        """Pull the base image, once for all targets."""
        default = re.search(r"(?m)^ARG PYTHON_IMAGE=(\S+)$", (self.checkout / "Dockerfile").read_text(encoding="utf-8"))
        if default is None:
            raise PublishError("Dockerfile: no line ARG PYTHON_IMAGE=…, expected the base image")
        source = self.given_bases.get(architecture, f"docker://docker.io/library/{default[1]}")
        name = f"localhost/base-{architecture}"
        number = self._buildah("pull", "-q", "--arch", architecture, source).strip()
        self._buildah("tag", number, name)
        digest = json.loads(self._buildah("inspect", "--type", "image", name))["FromImageDigest"]
        # A file's name is of this machine alone.
        transport, _, place = source.partition(":")
        return Base(
            architecture,
            place.lstrip("/") if transport == "docker" else f"{transport}:{Path(place).name}",
            name,
            digest,
        )

    def _build(self, target: str) -> None:
        """Build an image for each architecture, and their index."""
        index = f"localhost/{target}:index"
        self._buildah("manifest", "create", index)
        labels = {"source": self.source, "revision": self.commit}
        for base in self.bases:
            built = f"localhost/{target}-{base.architecture}"
            words = [f"--build-arg=PYTHON_IMAGE={base.name}", f"--build-arg=VERSION={self.version}"]
            words += [f"--label=org.opencontainers.image.{label}={value}" for label, value in labels.items()]
            options = ["--pull-never", "--network", "host", "--arch", base.architecture, "--target", target]
            self._buildah("bud", "-q", *options, *words, "-t", built, str(self.checkout))
            self._buildah("manifest", "add", index, built)

    def _push(self, target: str) -> str:
        """Push an index with its images, without a tag, and return the name, tag and digest that it gets."""
        name, folder, file = self._image(target), self.folder / f"{target}.oci", self.folder / f"{target}.digest"
        index = f"localhost/{target}:index"
        self._buildah("manifest", "push", "--all", "--format", "oci", f"--digestfile={file}", index, f"oci:{folder}")
        image = f"{name}@{file.read_text(encoding='utf-8').strip()}"
        self._crane("push", str(folder), _by_digest(image))
        return image

    def _dist(self, images: dict[str, str]) -> None:
        words = ["--into", str(self.into), "--uv", self.uv, "--helm", str(install.helm_program())]
        words += [f"--image={image}" for image in images.values()]
        run([sys.executable, str(self.checkout / ".ci" / "dist.py"), *words, *self.dist_options])

    def _push_chart(self, package: Path) -> str:
        """Push a chart, and return its name, tag and digest."""
        place = f"{self.registry}/charts"
        plain = ["--plain-http"] if self.plain_http else []
        told = run([str(install.helm_program()), "push", *plain, str(package), f"oci://{place}"])
        if (digest := DIGEST.search(told)) is None:
            raise PublishError(f"helm push {package.name} told no digest: {told.strip()}")
        name = package.name.removesuffix(f"-{self.version}.tgz")
        return f"{place}/{name}:{self.version}@{digest[0]}"

    def _provenance(self) -> dict[str, Any]:
        """https://slsa.dev/spec/v1.0/provenance, the predicate; cosign adds the subject."""
        lock = hashlib.sha256((self.checkout / "uv.lock").read_bytes()).hexdigest()
        materials = [
            {"uri": f"git+{self.source}", "digest": {"gitCommit": self.commit}},
            {"uri": f"git+{self.source}#uv.lock", "digest": {"sha256": lock}},
            *(
                {"uri": one.source, "digest": _algorithm_and_value(one.digest), "name": f"base-{one.architecture}"}
                for one in self.bases
            ),
        ]
        return {
            "buildDefinition": {
                "buildType": f"{self.source}#{BUILD_TYPE}",
                "externalParameters": {
                    "registry": self.registry,
                    "version": self.version,
                    "targets": self.targets,
                    "architectures": list(ARCHITECTURES),
                    "dist": self.dist_options,
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": self.builder},
                "metadata": {
                    "startedOn": self.started.isoformat(timespec="seconds"),
                    "finishedOn": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            },
        }

    def _attest_contents(self, target: str, index: str) -> None:
        """Attach to each architecture's image the list of what is in it."""
        repository = _by_digest(index).partition("@")[0]
        for base in self.bases:
            digest = self._crane("digest", f"--platform=linux/{base.architecture}", _by_digest(index)).strip()
            image = f"{repository}@{digest}"
            found = self._contents(target, image)
            self._attest(image, CONTENTS, self._write(f"{target}-{base.architecture}.cdx.json", found))

    def _contents(self, target: str, image: str) -> dict[str, Any]:
        """CycloneDX: what the image's files say, with what uv knows of the packages of uv.lock."""
        export = [self.uv, "export", "--quiet", "--frozen", "--no-default-groups", *TARGETS[target][1]]
        sbom = ["--format", "cyclonedx1.5", "--preview-features", "sbom-export"]
        listed: dict[str, Any] = json.loads(run([*export, *sbom], cwd=self.checkout))
        archive = self.folder / "image.tar"
        self._crane("export", image, str(archive))
        with tarfile.open(archive) as tar:
            add_contents(tar, listed)
        archive.unlink()
        listed["metadata"]["component"] = {"type": "container", "name": image, "version": self.version}
        return listed

    def _sign_files(self, provenance: Path) -> None:
        """The sums stand for all files."""
        sums = self.into / "SHA256SUMS"
        self._cosign("sign-blob", "--yes", *self.key, f"--bundle={sums}.sig", str(sums))
        words = [f"--type={PROVENANCE}", f"--predicate={provenance}", f"--bundle={sums}.provenance"]
        self._cosign("attest-blob", "--yes", *self.key, *words, str(sums))

    def _attest(self, reference: str, kind: str, predicate: Path) -> None:
        words = [f"--type={kind}", f"--predicate={predicate}"]
        self._cosign("attest", "--yes", *self._key_and_registry(), *words, reference)

    def _key_and_registry(self) -> list[str]:
        return [*self.key, *(["--allow-http-registry"] if self.plain_http else [])]

    def _cosign(self, *words: str) -> None:
        run([str(install.cosign_program()), *words], env=self.secrets)

    def _crane(self, *words: str) -> str:
        options = ["--insecure"] if self.plain_http else []
        done = subprocess.run(  # noqa: S603
            [str(install.crane_program()), *options, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PublishError(f"crane {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _buildah(self, *words: str) -> str:
        return buildah(self.store, *words)

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path


def _given_bases(words: list[str]) -> dict[str, str]:
    given = {}
    for word in words:
        architecture, _, image = word.partition("=")
        if architecture not in ARCHITECTURES or not image:
            raise PublishError(
                f"--base-image {word}: expected ARCHITECTURE=IMAGE, with one of {', '.join(ARCHITECTURES)}"
            )
        given[architecture] = image
    return given


def _by_digest(reference: str) -> str:
    """REPOSITORY:TAG@DIGEST -> REPOSITORY@DIGEST."""
    tagged, _, digest = reference.partition("@")
    return f"{tagged.rpartition(':')[0]}@{digest}"


def _algorithm_and_value(digest: str) -> dict[str, str]:
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}


if __name__ == "__main__":
    main()
