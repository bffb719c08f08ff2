"""What Go builds, by pinned versions: programs of published modules, Kubernetes' own, and a CSI driver with its sidecars."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.real.parts.steps import cache_folder, go_build, go_install, no_files, run

HERE = Path(__file__).resolve().parent
EXTERNAL_SNAPSHOTTER_VERSION = "v8.7.0"
# Kubernetes' own sidecars of a CSI driver, by their packages; csi/go.mod pins their versions. The driver is ours.
CSI_PROGRAMS = {
    "csi-attacher": "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
    "csi-provisioner": "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    "csi-snapshotter": "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
    "snapshot-controller": "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    "driver": "./driver",
}
SNAPSHOT_KINDS = "github.com/kubernetes-csi/external-snapshotter/client/v8"


@dataclass(frozen=True)
class GoProgram:
    """A program that Go builds: of a published module, or, without one, of the module of the part's name beside this file."""

    what: str
    version: str
    package: str = ""
    file: str = ""
    needs: tuple[str, ...] = ("go",)


GO_PROGRAMS = {
    # Under the name by which kubectl finds it.
    "krew": GoProgram("krew", "v0.4.3", "sigs.k8s.io/krew/cmd/krew", "kubectl-krew", ("go", "kubectl")),
    "etcd": GoProgram("etcd", "v3.6.8"),
    "helm": GoProgram("Helm", "v3.22.0", "helm.sh/helm/v3/cmd/helm"),
    "actionlint": GoProgram("actionlint", "v1.7.12", "github.com/rhysd/actionlint/cmd/actionlint"),
    # Upstream's: Debian's reads its templates at a fixed place, so its package cannot be unpacked into the cache.
    "alertmanager": GoProgram("Alertmanager", "v0.28.1", "github.com/prometheus/alertmanager/cmd/alertmanager"),
    "pause": GoProgram("what holds a pod's namespaces open, version", "1"),
    # A real S3 server over a folder.
    "s3-server": GoProgram(
        "an S3 server, versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw", "versitygw"
    ),
    # A client of registries, and a registry itself (`crane registry serve`).
    "crane": GoProgram("crane", "v0.22.1", "github.com/google/go-containerregistry/cmd/crane"),
    "cosign": GoProgram("cosign", "v2.6.5", "github.com/sigstore/cosign/v2/cmd/cosign"),
    "coredns": GoProgram("CoreDNS", "v1.12.4", "github.com/coredns/coredns"),
    # The nodes use its firewall: it enforces NetworkPolicies.
    "kube-router": GoProgram("kube-router", "v2.1.0", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
}


def program(part: str) -> Path:
    """The program of a part that Go builds."""
    one = GO_PROGRAMS[part]
    return cache_folder() / f"{part}-{one.version}" / (one.file or part)


def program_missing(part: str) -> str | None:
    return no_files(program(part))


def build_go_program(part: str) -> None:
    one, target = GO_PROGRAMS[part], program(part)
    if one.package:
        go_install(f"{one.package}@{one.version}", target)
    else:
        go_build(HERE / part, {target.name: "."}, target.parent)


def build_kubernetes(programs: tuple[str, ...], version: str, folder: Path) -> None:
    """The linker stamps the programs' version, which kubectl compares with the server's."""
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())
    go_build(
        HERE / "kubernetes", {name: f"k8s.io/kubernetes/cmd/{name}" for name in programs}, folder, link_flags=flags
    )


def csi_folder() -> Path:
    """The folder of a CSI driver that takes snapshots, of its sidecars, and of the kinds VolumeSnapshot (`*.yaml`)."""
    return cache_folder() / f"csi-{EXTERNAL_SNAPSHOTTER_VERSION}-1"


def install_csi() -> None:
    """The kinds come last: they are the part's mark that it is whole."""
    go_build(HERE / "csi", CSI_PROGRAMS, csi_folder())
    with tempfile.TemporaryDirectory() as copied:
        module = Path(shutil.copytree(HERE / "csi", Path(copied) / "csi"))
        folder = run(["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", SNAPSHOT_KINDS], cwd=module).strip()
    for file in sorted(Path(folder, "config", "crd").glob("*.storage.k8s.io_*.yaml")):
        (csi_folder() / file.name).write_bytes(file.read_bytes())


def csi_missing() -> str | None:
    # Those of groups of snapshots too: without them the snapshot controller does not start.
    kinds = [
        f"{group}.storage.k8s.io_volume{group}{form}.yaml"
        for group in ("snapshot", "groupsnapshot")
        for form in ("classes", "contents", "s")
    ]
    return no_files(*(csi_folder() / name for name in (*CSI_PROGRAMS, *kinds)))
