#!/usr/bin/env python3
"""Publish a release into a registry: `make release`. The release workflow runs the same.

    images          REGISTRY/brokergroup-operator and -sla, an index of one image for each architecture, built from the Dockerfile
    charts          REGISTRY/charts/NAME, by helm; the operator's chart names the images by digest
    files           what `make dist` makes, with the signature of SHA256SUMS beside it
    list of contents of each image: CycloneDX, from uv.lock and the image's own Debian packages; an attestation of that image
    provenance      SLSA 1.0, of each index, chart and of SHA256SUMS: source and commit, base images, uv.lock, builder
    signatures      by cosign, of each index with its images, of each chart and of SHA256SUMS

With --key (a private key of cosign; its password is in COSIGN_PASSWORD) nothing leaves for a transparency log. Without it cosign
signs as the identity of the workflow that it runs in, and the public log has the signature.
The commit of HEAD is what is published, from a clone of its own. The last line of standard output is JSON: what was published, by
digest. Exit code 1, and why, if a step fails; what was pushed before stays in the registry.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.real.parts import install  # noqa: E402

# The Dockerfile's targets: the name of the image, and the extras of uv.lock in it.
TARGETS = {"operator": ("brokergroup-operator", ()), "sla": ("brokergroup-operator-sla", ("--extra", "sla"))}
ARCHITECTURES = ("amd64", "arm64")
BUILD_TYPE = "make-release/v1"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PROVENANCE, CONTENTS = "slsaprovenance1", "cyclonedx"
DPKG_STATUS = "var/lib/dpkg/status"


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
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(install.image_store())
            if platform.machine() != "aarch64":
                stack.enter_context(install.arm64_programs_run())
            print(json.dumps(Publication(arguments, folder).publish()))  # noqa: T201
    except (PublishError, install.PartError, OSError) as error:
        sys.exit(f"publish: {error}")


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
        self.started = datetime.now(UTC)
        self.store, self.checkout, self.folder = folder / "store", folder / "checkout", folder
        install.run(["git", "clone", "--quiet", str(ROOT), str(self.checkout)])
        self.commit = install.run(["git", "rev-parse", "HEAD"], cwd=self.checkout).strip()
        project = tomllib.loads((self.checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self.version = str(project["version"])
        self.bases = [self._base(architecture, arguments.base_image) for architecture in ARCHITECTURES]

    def publish(self) -> dict[str, object]:
        # Everything is built before the first push: a build that fails leaves the registry as it was.
        for target in self.targets:
            self._build(target)
        images = {target: self._push(target) for target in self.targets}
        self._dist(images)
        charts = [self._push_chart(package) for package in sorted(self.into.glob("*.tgz"))]
        provenance = self._write("provenance.json", self._provenance())
        for reference in (*images.values(), *charts):
            self._cosign("sign", "--recursive", *self._key_and_registry(), _by_digest(reference))
            self._attest(_by_digest(reference), PROVENANCE, provenance)
        for target, image in images.items():
            self._attest_contents(target, image)
        self._sign_files(provenance)
        return {"version": self.version, "commit": self.commit, "images": images, "charts": charts}

    def _base(self, architecture: str, given: list[str]) -> Base:
        """Pull the base image, once for all targets."""
        default = re.search(r"(?m)^ARG PYTHON_IMAGE=(\S+)$", (self.checkout / "Dockerfile").read_text(encoding="utf-8"))
        if default is None:
            raise PublishError("Dockerfile: no line ARG PYTHON_IMAGE=…, expected the base image")
        source = dict(one.split("=", 1) for one in given).get(architecture, f"docker://docker.io/library/{default[1]}")
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
        """Push an index with its images, and return its name, tag and digest."""
        name = f"{self.registry}/{TARGETS[target][0]}:{self.version}"
        digest = self.folder / f"{target}.digest"
        tls = f"--tls-verify={str(not self.plain_http).lower()}"
        options = ["--all", "--format", "oci", tls, f"--digestfile={digest}"]
        self._buildah("manifest", "push", *options, f"localhost/{target}:index", f"docker://{name}")
        return f"{name}@{digest.read_text(encoding='utf-8').strip()}"

    def _dist(self, images: dict[str, str]) -> None:
        words = ["--into", str(self.into), "--uv", self.uv, "--helm", str(install.helm_program())]
        words += [f"--image={image}" for image in images.values()]
        install.run([sys.executable, str(self.checkout / ".ci" / "dist.py"), *words, *self.dist_options])

    def _push_chart(self, package: Path) -> str:
        """Push a chart, and return its name, tag and digest."""
        place = f"{self.registry}/charts"
        plain = ["--plain-http"] if self.plain_http else []
        told = install.run([str(install.helm_program()), "push", *plain, str(package), f"oci://{place}"])
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
            digest = self._crane("digest", f"--platform=linux/{base.architecture}", _by_digest(index)).decode().strip()
            image = f"{repository}@{digest}"
            found = self._contents(target, image)
            self._attest(image, CONTENTS, self._write(f"{target}-{base.architecture}.cdx.json", found))

    def _contents(self, target: str, image: str) -> dict[str, Any]:
        """CycloneDX: uv's list of the Python packages, and the Debian packages that the image itself names."""
        export = [self.uv, "export", "--quiet", "--frozen", "--no-default-groups", *TARGETS[target][1]]
        sbom = ["--format", "cyclonedx1.5", "--preview-features", "sbom-export"]
        found: dict[str, Any] = json.loads(install.run([*export, *sbom], cwd=self.checkout))
        with tarfile.open(fileobj=io.BytesIO(self._crane("export", image, "-"))) as tar:
            status = tar.extractfile(DPKG_STATUS)
            packages = [] if status is None else debian_packages(status.read().decode())
        if not packages or not found.get("components"):
            raise PublishError(f"{image}: no Debian package or no Python package found, expected both")
        found["components"] += packages
        found["metadata"]["component"] = {"type": "container", "name": image, "version": self.version}
        return found

    def _sign_files(self, provenance: Path) -> None:
        """The sums stand for all files."""
        sums = self.into / "SHA256SUMS"
        self._cosign("sign-blob", *self.key, f"--bundle={sums}.sig", str(sums))
        words = [f"--type={PROVENANCE}", f"--predicate={provenance}", f"--bundle={sums}.provenance"]
        self._cosign("attest-blob", *self.key, *words, str(sums))

    def _attest(self, reference: str, kind: str, predicate: Path) -> None:
        words = [f"--type={kind}", f"--predicate={predicate}"]
        self._cosign("attest", *self._key_and_registry(), *words, reference)

    def _key_and_registry(self) -> list[str]:
        return [*self.key, *(["--allow-http-registry"] if self.plain_http else [])]

    def _cosign(self, *words: str) -> None:
        install.run([str(install.cosign_program()), words[0], "--yes", *words[1:]])

    def _crane(self, *words: str) -> bytes:
        options = ["--insecure"] if self.plain_http else []
        done = subprocess.run(  # noqa: S603
            [str(install.crane_program()), *options, *words], capture_output=True, check=False
        )
        if done.returncode:
            raise PublishError(f"crane {' '.join(words)}: {done.stderr.decode().strip()}")
        return done.stdout

    def _buildah(self, *words: str) -> str:
        return install.buildah(self.store, *words)

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path


def debian_packages(status: str) -> list[dict[str, str]]:
    """Return the packages of dpkg's status as CycloneDX components."""
    components = []
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Architecture): (\S+)$", entry))
        if len(fields) == len(("Package", "Version", "Architecture")):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
            components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return components


def _by_digest(reference: str) -> str:
    """REPOSITORY:TAG@DIGEST -> REPOSITORY@DIGEST."""
    tagged, _, digest = reference.partition("@")
    return f"{tagged.rpartition(':')[0]}@{digest}"


def _algorithm_and_value(digest: str) -> dict[str, str]:
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}


if __name__ == "__main__":
    main()
