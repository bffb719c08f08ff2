"""What `make release` published: a user's commands verify it, and each change of it is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import install
from tests.release.publication import (
    ATTESTATION,
    BUILDER,
    CHART,
    NAME,
    PARTS,
    ROOT,
    SIGNATURE,
    SOURCE,
    Release,
    belonging,
    cosign,
    crane,
    key_pair,
    output_of,
    statement_of,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real(*PARTS), pytest.mark.timeout(5400)]
IMAGE, CHARTS, FILES = "a published image", "a published chart", "published files"
NO_SIGNATURE, WRONG_SIGNATURE = "no signatures found", "invalid signature"
NO_ATTESTATION = "no matching attestations: \n"
OF_ANOTHER_IMAGE, BY_ANOTHER_KEY = "no matching subject digest found", "accepted signatures do not match threshold"


def refusal(release: Release, what: str = IMAGE, *, key: Path | None = None) -> str:
    """Return why the documented commands refuse it."""
    done = release.verify_as_documented(what, key=key)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_the_documented_commands_verify_image_charts_and_files(published: Release) -> None:
    for what in (IMAGE, CHARTS, FILES):
        done = published.verify_as_documented(what)
        assert done.returncode == 0, done.stderr
    sums = (published.files / "SHA256SUMS").read_text(encoding="utf-8")
    assert f"{NAME}-{published.told['version']}.tgz" in sums


def test_one_index_has_an_image_for_each_architecture(published: Release) -> None:
    index = json.loads(crane("manifest", published.image))
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]
    assert crane("digest", f"{published.registry}/{NAME}:{published.told['version']}") == published.digest
    for one in index["manifests"]:
        image = f"{published.registry}/{NAME}@{one['digest']}"
        cosign("verify", *published.trust(), image)
        config = json.loads(crane("config", image))
        assert config["architecture"] == one["platform"]["architecture"]
        labels = config["config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == published.told["commit"]
        assert labels["org.opencontainers.image.version"] == published.told["version"]


def test_the_provenance_names_builder_commit_and_what_went_in(published: Release) -> None:
    commit = published.told["commit"]
    charts = [one.replace(f":{published.told['version']}@", "@") for one in published.told["charts"]]
    assert len(charts) == len(list((ROOT / "charts").glob("*/Chart.yaml")))
    for reference in (published.image, *charts):
        statement = published.attestation("slsaprovenance1", reference)
        assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
        [subject] = statement["subject"]
        assert f"sha256:{subject['digest']['sha256']}" == reference.partition("@")[2]
        assert statement["predicate"]["runDetails"]["builder"] == {"id": BUILDER}
        source, lock, *bases = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert source == {"uri": f"git+{SOURCE}", "digest": {"gitCommit": commit}}
        committed = subprocess.run(
            ["git", "show", f"{commit}:uv.lock"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        assert lock["digest"] == {"sha256": hashlib.sha256(committed).hexdigest()}
        assert [one["name"] for one in bases] == ["base-amd64", "base-arm64"]
        assert len({one["digest"]["sha256"] for one in bases}) == len(bases)


def test_each_image_has_the_list_of_its_own_contents(published: Release) -> None:
    listed = {}
    for architecture in ("amd64", "arm64"):
        digest = published.platform_digest(architecture)
        statement = published.attestation("cyclonedx", f"{published.registry}/{NAME}@{digest}")
        assert statement["subject"][0]["digest"] == {"sha256": digest.removeprefix("sha256:")}
        listed[architecture] = {one["purl"] for one in statement["predicate"]["components"]}
        assert {purl.partition("@")[0] for purl in listed[architecture]} >= {
            *("pkg:pypi/kopf", "pkg:pypi/aiohttp", "pkg:deb/debian/libc6", "pkg:deb/debian/libssl3"),
            "pkg:generic/python",
        }
    assert [purl for purl in listed["amd64"] if purl.endswith("arch=arm64")] == []
    assert [purl for purl in listed["arm64"] if purl.endswith("arch=amd64")] == []


def test_the_charts_image_is_the_published_one(published: Release, tmp_path: Path) -> None:
    reference = next(one for one in published.told["charts"] if f"/{CHART}:" in one)
    version, helm = published.told["version"], str(install.helm_program())
    by_digest = reference.replace(f":{version}@", "@")
    output_of(helm, "pull", f"oci://{by_digest}", "--destination", str(tmp_path))
    [package] = tmp_path.glob("*.tgz")
    assert package.read_bytes() == (published.files / f"{NAME}-{version}.tgz").read_bytes()
    objects = list(
        yaml.safe_load_all(output_of(helm, "template", "operator", str(package), "--kube-version", "1.35.0"))
    )
    [operator] = [one for one in objects if one and one["kind"] == "StatefulSet"]
    [container] = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{published.registry}/{NAME}:{version}@{published.digest}"
    assert f"--replica-image={container['image']}" in container["args"]


def test_a_mirror_is_verified_and_by_no_other_key(mirrored: Release, tmp_path: Path) -> None:
    done = mirrored.verify_as_documented(IMAGE)
    assert done.returncode == 0, done.stderr
    assert WRONG_SIGNATURE in refusal(mirrored, key=key_pair(tmp_path / "other"))


def changed(release: Release) -> str:
    """Put the tag on a changed image of one architecture, and return its digest."""
    tag = f"{release.registry}/{NAME}:{release.told['version']}"
    one = f"{release.registry}/{NAME}@{release.platform_digest('amd64')}"
    crane("mutate", one, "--label", "changed=yes", "--tag", tag)
    return crane("digest", tag)


def test_a_changed_image_is_refused(mirrored: Release) -> None:
    changed(mirrored)
    assert NO_SIGNATURE in refusal(mirrored)


def test_a_changed_image_with_the_signature_of_the_other_is_refused(mirrored: Release) -> None:
    digest = changed(mirrored)
    for what in (SIGNATURE, ATTESTATION):
        crane("copy", belonging(mirrored, mirrored.digest, what), belonging(mirrored, digest, what))
    assert f"invalid or missing digest in claim: {mirrored.digest}" in refusal(mirrored)


def test_an_image_signed_with_another_key_is_refused(mirrored: Release, tmp_path: Path) -> None:
    crane("delete", belonging(mirrored, mirrored.digest, SIGNATURE))
    assert NO_SIGNATURE in refusal(mirrored)
    other = key_pair(tmp_path / "other") / "cosign.key"
    cosign("sign", "--yes", "--tlog-upload=false", f"--key={other}", mirrored.image)
    assert WRONG_SIGNATURE in refusal(mirrored)


def test_an_image_without_provenance_is_refused(mirrored: Release) -> None:
    crane("delete", belonging(mirrored, mirrored.digest, ATTESTATION))
    assert NO_ATTESTATION in refusal(mirrored)


def test_an_image_without_its_list_of_contents_is_refused(mirrored: Release) -> None:
    crane("delete", belonging(mirrored, mirrored.platform_digest("arm64"), ATTESTATION))
    assert NO_ATTESTATION in refusal(mirrored)


def test_the_list_of_contents_of_another_image_is_refused(mirrored: Release) -> None:
    """By our own key, for the other architecture."""
    one, other = (
        belonging(mirrored, mirrored.platform_digest(architecture), ATTESTATION) for architecture in ("amd64", "arm64")
    )
    crane("copy", one, other)
    assert OF_ANOTHER_IMAGE in refusal(mirrored)


def swap(release: Release, envelope: dict[str, Any], folder: Path) -> None:
    """Put this attestation in the place of the ARM image's."""
    digest = release.platform_digest("arm64")
    crane("delete", belonging(release, digest, ATTESTATION))
    (folder / "swapped.json").write_text(json.dumps(envelope), encoding="utf-8")
    image = f"{release.registry}/{NAME}@{digest}"
    cosign("attach", "attestation", f"--attestation={folder / 'swapped.json'}", image)


def test_an_edited_list_of_contents_is_refused(mirrored: Release, tmp_path: Path) -> None:
    digest = mirrored.platform_digest("arm64")
    envelope = json.loads(cosign("download", "attestation", f"{mirrored.registry}/{NAME}@{digest}"))
    swap(mirrored, envelope, tmp_path)
    done = mirrored.verify_as_documented(IMAGE)
    assert done.returncode == 0, "unedited, it is accepted: " + done.stderr
    statement = statement_of(envelope)
    statement["predicate"]["components"].pop()
    edited = base64.b64encode(json.dumps(statement).encode()).decode()
    swap(mirrored, {**envelope, "payload": edited}, tmp_path)
    assert BY_ANOTHER_KEY in refusal(mirrored)


def test_a_list_of_contents_by_another_key_is_refused(mirrored: Release, tmp_path: Path) -> None:
    digest = mirrored.platform_digest("arm64")
    crane("delete", belonging(mirrored, digest, ATTESTATION))
    contents, other = tmp_path / "contents.json", key_pair(tmp_path / "other") / "cosign.key"
    contents.write_text('{"bomFormat": "CycloneDX", "specVersion": "1.5", "components": []}', encoding="utf-8")
    words = ["--yes", "--tlog-upload=false", f"--key={other}", "--type=cyclonedx", f"--predicate={contents}"]
    cosign("attest", *words, f"{mirrored.registry}/{NAME}@{digest}")
    assert BY_ANOTHER_KEY in refusal(mirrored)


def test_a_changed_file_and_changed_sums_are_refused(published: Release, tmp_path: Path) -> None:
    files = tmp_path / "dist"
    shutil.copytree(published.files, files)
    [archive] = files.glob("kubectl-brokergroup-*.tar.gz")
    archive.write_bytes(archive.read_bytes() + b"\0")
    there = Release(published.registry, published.key, files, published.told)
    done = there.verify_as_documented(FILES)
    assert (done.returncode != 0, f"{archive.name}: FAILED" in done.stdout) == (True, True), done.stderr
    sums = files / "SHA256SUMS"
    before = hashlib.sha256((published.files / archive.name).read_bytes()).hexdigest()
    after = hashlib.sha256(archive.read_bytes()).hexdigest()
    sums.write_text(sums.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    assert WRONG_SIGNATURE in refusal(there, FILES)
