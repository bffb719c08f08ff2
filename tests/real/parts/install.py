#!/usr/bin/env python3
"""Bring the real parts: the Java brokers, the real kube-apiserver, Helm, Prometheus, and what builds them.

A part is something that most tests do without and some tests exist for. Each is fetched or built once, through its own
registry's ordinary client and by a pinned version, into a cache folder keyed by that version (`$BROKERGROUP_CACHE`,
else `~/.cache/brokergroup-operator`), built aside and renamed, so that a killed run leaves nothing half done.

    python tests/real/parts/install.py --list          what is here, what is missing and why
    python tests/real/parts/install.py rocketmq helm   these and what they need
    python tests/real/parts/install.py --all           everything

Standard library only: it has to run before anything else is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
ROCKETMQ_VERSION = "5.5.0"
NEWEST_ROCKETMQ_VERSION = "5.5.1"
# Modules that the registry lacks for a release come from another one.
REST_OF_ROCKETMQ = {NEWEST_ROCKETMQ_VERSION: ROCKETMQ_VERSION}
OLDER_ROCKETMQ_VERSION = "5.3.3"
OLDER_CONTROLLER_VERSION = OLDER_ROCKETMQ_VERSION
# Beside the others, for the table of versions: before persistent broker ids (two of these), and the last of 5.1.
TABLE_VERSIONS = ("5.0.0", "5.1.0", "5.1.4")
PYTHON_CLIENT_VERSION = "5.1.2"
KUBERNETES_VERSION = "v1.35.4"
ETCD_VERSION = "v3.6.8"
HELM_VERSION = "v3.22.0"
ACTIONLINT_VERSION = "v1.7.12"
ALERTMANAGER_VERSION = "v0.28.1"
KREW_VERSION = "v0.4.3"
CRANE_VERSION = "v0.22.1"
COSIGN_VERSION = "v2.6.5"
S3_SERVER_VERSION = "v1.8.0"
COREDNS_VERSION = "v1.12.4"
KUBE_ROUTER_VERSION = "v2.1.0"
EXTERNAL_SNAPSHOTTER_VERSION = "v8.7.0"
PLAYWRIGHT_VERSION = "1.65.2"
AXE_VERSION = "4.14.1"
DEBIAN_RELEASE = "bookworm"
MINIMUM_JAVA = 17
# Kubernetes 1.35 is content with 1.25; the newest CSI sidecars, built against its 1.37, are not.
MINIMUM_GO = (1, 26)
KUBERNETES_PROGRAMS = ("kube-apiserver", "kubectl")
# Kubernetes' own sidecars of a CSI driver, by their packages; csi/go.mod pins their versions. The driver is ours.
CSI_PROGRAMS = {
    "csi-attacher": "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
    "csi-provisioner": "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    "csi-snapshotter": "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
    "snapshot-controller": "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    "driver": "./driver",
}
SNAPSHOT_KINDS = "github.com/kubernetes-csi/external-snapshotter/client/v8"
NODE_PROGRAMS = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
# Debian packages of a node and its images, each by a file of the package or a program on the path.
NODE_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ipset": "ipset",
    "nft": "nftables",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
BASE_IMAGE = f"localhost/brokergroup-base:{DEBIAN_RELEASE}"
BASE_IMAGE_ARM64 = f"localhost/brokergroup-base-arm64:{DEBIAN_RELEASE}"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
ARM64_NAME = "brokergroup-arm64"
# The ELF header of a 64-bit program for ARM, and which of its bits count (Linux, Documentation/admin-guide/binfmt-misc.rst).
ARM64_MAGIC = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
ARM64_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
JAVA_IMAGE = f"docker.io/apache/rocketmq:{ROCKETMQ_VERSION}"


class PartError(Exception):
    """A part cannot be had here; the message says what failed and what would help."""


@dataclass(frozen=True)
class Part:
    """One part of real tests: `missing` returns why it is absent (None: present), `install` installs it."""

    name: str
    what: str
    missing: Callable[[], str | None]
    install: Callable[[], None]
    needs: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Where the parts lie: one folder per part and version."""
    return Path(os.environ.get("BROKERGROUP_CACHE") or Path.home() / ".cache" / "brokergroup-operator")


def rocketmq_home(version: str = ROCKETMQ_VERSION) -> Path:
    """The folder whose lib/ holds the jars of the Java brokers of this version."""
    return cache_folder() / f"rocketmq-{version}"


def proxy_home() -> Path:
    """The folder whose lib/ holds the jars of the Java Proxy and of the BrokerContainer."""
    return cache_folder() / f"rocketmq-proxy-{ROCKETMQ_VERSION}"


def python_client_folder() -> Path:
    """The folder that holds the gRPC client's Python packages."""
    return cache_folder() / f"rocketmq-python-client-{PYTHON_CLIENT_VERSION}"


def browser_folder() -> Path:
    """The folder of what drives a browser and of axe-core."""
    return cache_folder() / f"browser-{PLAYWRIGHT_VERSION}-{AXE_VERSION}"


def playwright_folder() -> Path:
    """The folder that holds playwright's Python packages."""
    return browser_folder() / "python"


def axe_program() -> Path:
    """axe-core's script."""
    return browser_folder() / "node_modules" / "axe-core" / "axe.min.js"


def chromium_program() -> Path:
    """Debian's Chromium."""
    return Path("/usr/bin/chromium")


def controller_home(version: str = ROCKETMQ_VERSION) -> Path:
    """The folder whose lib/ holds a Java controller of this version."""
    if version in (ROCKETMQ_VERSION, NEWEST_ROCKETMQ_VERSION):
        return rocketmq_home(version)
    return cache_folder() / f"rocketmq-controller-{version}"


def kubernetes_folder() -> Path:
    """The folder of kube-apiserver and kubectl."""
    return cache_folder() / f"kubernetes-{KUBERNETES_VERSION}"


def node_folder() -> Path:
    """The folder of the programs that make pods: controller-manager, scheduler, kube-proxy, kubelet."""
    return cache_folder() / f"kubernetes-node-{KUBERNETES_VERSION}"


def pause_program() -> Path:
    """Return the pause program, which holds a pod's namespaces open."""
    return cache_folder() / "pause-1" / "pause"


def coredns_program() -> Path:
    """The real CoreDNS."""
    return cache_folder() / f"coredns-{COREDNS_VERSION}" / "coredns"


def kube_router_program() -> Path:
    """kube-router, of which the nodes use the firewall: it enforces NetworkPolicies."""
    return cache_folder() / f"kube-router-{KUBE_ROUTER_VERSION}" / "kube-router"


def csi_folder() -> Path:
    """The folder of a CSI driver that takes snapshots, of its sidecars, and of the kinds VolumeSnapshot (`*.yaml`)."""
    return cache_folder() / f"csi-{EXTERNAL_SNAPSHOTTER_VERSION}-1"


def base_image_archive() -> Path:
    """The image that stands in for the Dockerfile's base, as a docker archive."""
    return cache_folder() / f"base-image-{DEBIAN_RELEASE}" / "image.tar"


def arm64_base_image_archive() -> Path:
    """The same for 64-bit ARM."""
    return cache_folder() / f"base-image-arm64-{DEBIAN_RELEASE}" / "image.tar"


def java_image_archive() -> Path:
    """The image of Java's brokers, NameServer and Proxy, as a docker archive."""
    return cache_folder() / f"rocketmq-image-with-proxy-and-container-{ROCKETMQ_VERSION}" / "image.tar"


def etcd_program() -> Path:
    """The real etcd."""
    return cache_folder() / f"etcd-{ETCD_VERSION}" / "etcd"


def helm_program() -> Path:
    """The real Helm."""
    return cache_folder() / f"helm-{HELM_VERSION}" / "helm"


def prometheus_program(name: str = "prometheus") -> Path | None:
    """Debian's prometheus or promtool: the newest one in the cache, else one on the path."""
    unpacked = sorted(cache_folder().glob(f"prometheus-*/usr/bin/{name}"))
    if unpacked:
        return unpacked[-1]
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def arm64_emulator() -> Path | None:
    """Debian's qemu-aarch64-static in the cache; None if it is not there."""
    return max(cache_folder().glob("qemu-user-static-*/usr/bin/qemu-aarch64-static"), default=None)


# Parts are brought by two threads, and apt refuses a second one of itself.
one_apt = threading.Lock()


def run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run one command and hand back its output; on failure tell its last lines."""
    print(f"  $ {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise PartError(f"{command[0]}: no such program on this machine") from error
    if done.returncode != 0:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-20:])
        raise PartError(f"{' '.join(command)} ended with exit code {done.returncode}:\n    {tail}")
    return done.stdout


@contextlib.contextmanager
def built_aside(target: Path) -> Iterator[Path]:
    """A fresh folder beside the target that takes its name only when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        aside.chmod(0o755)
        yield aside
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def apt_install(*packages: str) -> None:
    """Install Debian packages by name; without root or apt the error has the manual steps."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PartError(f"needs the packages {' '.join(packages)}, and installing them needs root on a Debian machine")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with one_apt:
        run(["apt-get", "update", "-q"], env=quiet)
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], env=quiet)


def first_version(command: list[str], pattern: str) -> tuple[int, ...] | None:
    """The version that a program prints of itself, as numbers; None if it is not here."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout + done.stderr)
    return tuple(int(number) for number in found.group(1).split(".")) if found else None


def java_missing() -> str | None:
    version = first_version(["javac", "-version"], r"javac (\d+)")
    if version is None:
        return f"no javac on the path (a JDK {MINIMUM_JAVA} or newer is needed)"
    return None if version[0] >= MINIMUM_JAVA else f"JDK {version[0]} is here, {MINIMUM_JAVA} or newer is needed"


def maven_missing() -> str | None:
    return None if shutil.which("mvn") else "no mvn on the path"


def go_missing() -> str | None:
    version = first_version(["go", "version"], r"go(\d+\.\d+)")
    needed = ".".join(map(str, MINIMUM_GO))
    if version is None:
        return f"no go on the path ({needed} or newer is needed)"
    return None if version >= MINIMUM_GO else f"go {'.'.join(map(str, version))} is here, {needed} or newer is needed"


def install_go() -> None:
    raise PartError(
        f"Go {'.'.join(map(str, MINIMUM_GO))} or newer has to be on the machine: Debian 12's golang package is 1.19, "
        "too old for Kubernetes 1.35; install Go by hand and put its bin folder on the path"
    )


def no_files(*paths: Path) -> str | None:
    absent = [str(path) for path in paths if not path.exists()]
    return f"not built yet: {', '.join(absent)}" if absent else None


def copy_jars(pom: Path, home: Path, version: str) -> None:
    """The jars that a pom names, in a version of RocketMQ, into `home`/lib."""
    with built_aside(home) as aside:
        versions = [f"-Drocketmq.version={version}", f"-Drocketmq.rest={REST_OF_ROCKETMQ.get(version, version)}"]
        command = ["mvn", "-q", "-B", "-f", str(pom), *versions, "dependency:copy-dependencies"]
        run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={aside / 'lib'}"])


def jar(home: Path, name: str, version: str = ROCKETMQ_VERSION) -> Path:
    return home / "lib" / f"rocketmq-{name}-{version}.jar"


def install_rocketmq(version: str = ROCKETMQ_VERSION) -> None:
    copy_jars(HERE / "rocketmq" / "pom.xml", rocketmq_home(version), version)


def install_table_versions() -> None:
    for version in TABLE_VERSIONS:
        if no_files(jar(rocketmq_home(version), "broker", version)):
            install_rocketmq(version)


def install_older_controller() -> None:
    pom = HERE / "rocketmq" / "controller" / "pom.xml"
    copy_jars(pom, controller_home(OLDER_CONTROLLER_VERSION), OLDER_CONTROLLER_VERSION)


def install_proxy() -> None:
    copy_jars(HERE / "rocketmq" / "proxy" / "pom.xml", proxy_home(), ROCKETMQ_VERSION)


def install_python_client() -> None:
    """Beside the project's own environment, which has other versions of the same packages."""
    with built_aside(python_client_folder()) as aside:
        command = ["python3", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--root-user-action=ignore"]
        wanted = HERE / "rocketmq" / "python-client" / "requirements.txt"
        run([*command, "--target", str(aside), "--requirement", str(wanted)])


def install_browser() -> None:
    """Debian's Chromium; playwright without browsers of its own; axe-core."""
    if not chromium_program().exists():
        apt_install("chromium")
    if shutil.which("npm") is None:
        raise PartError("no npm on the path: axe-core comes from npm's registry (Debian's package npm)")
    with built_aside(browser_folder()) as aside:
        command = ["python3", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--root-user-action=ignore"]
        run([*command, "--target", str(aside / "python"), f"playwright=={PLAYWRIGHT_VERSION}"])
        run(["npm", "install", "--silent", "--no-audit", "--prefix", str(aside), f"axe-core@{AXE_VERSION}"])


def go_build(module: Path, packages: dict[str, str], target: Path, *, link_flags: str = "") -> None:
    """Build programs of a pinned module: go.sum in the tree guards what is compiled. Niced, for it takes minutes."""
    with built_aside(target) as aside, tempfile.TemporaryDirectory() as copied:
        source = Path(shutil.copytree(module, Path(copied) / module.name))
        for program, package in packages.items():
            command = [
                "nice",
                "-n",
                "10",
                "go",
                "build",
                "-mod=readonly",
                "-trimpath",
                "-ldflags",
                f"-s -w {link_flags}",
            ]
            run([*command, "-o", str(aside / program), package], cwd=source, env={"CGO_ENABLED": "0"})


def kubernetes_flags() -> str:
    """Return the linker flags of the programs' version, which kubectl compares with the server's."""
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    stamp = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())


def install_kubernetes() -> None:
    programs = {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS}
    go_build(HERE / "kubernetes", programs, kubernetes_folder(), link_flags=kubernetes_flags())


def install_node_programs() -> None:
    programs = {name: f"k8s.io/kubernetes/cmd/{name}" for name in NODE_PROGRAMS}
    go_build(HERE / "kubernetes", programs, node_folder(), link_flags=kubernetes_flags())


def install_pause() -> None:
    go_build(HERE / "pause", {"pause": "."}, pause_program().parent)


def install_etcd() -> None:
    go_build(HERE / "etcd", {"etcd": "."}, etcd_program().parent)


def go_install(package: str, target: Path) -> None:
    """Build a program of a published module by its version; the module's own go.sum guards what is compiled."""
    with built_aside(target) as aside:
        command = ["nice", "-n", "10", "go", "install", "-trimpath", "-ldflags", "-s -w", package]
        run(command, env={"GOBIN": str(aside), "CGO_ENABLED": "0"})


def install_helm() -> None:
    go_install(f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}", helm_program().parent)


def actionlint_program() -> Path:
    return cache_folder() / f"actionlint-{ACTIONLINT_VERSION}" / "actionlint"


def install_actionlint() -> None:
    go_install(f"github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT_VERSION}", actionlint_program().parent)


def alertmanager_program() -> Path:
    """Upstream's Alertmanager: Debian's reads its templates at a fixed place, so its package cannot be unpacked into the cache."""
    return cache_folder() / f"alertmanager-{ALERTMANAGER_VERSION}" / "alertmanager"


def install_alertmanager() -> None:
    package = f"github.com/prometheus/alertmanager/cmd/alertmanager@{ALERTMANAGER_VERSION}"
    go_install(package, alertmanager_program().parent)


def krew_program() -> Path:
    """krew, under the name by which kubectl finds it."""
    return cache_folder() / f"krew-{KREW_VERSION}" / "kubectl-krew"


def install_krew() -> None:
    with built_aside(krew_program().parent) as aside:
        command = ["nice", "-n", "10", "go", "install", "-trimpath", "-ldflags", "-s -w"]
        environment = {"GOBIN": str(aside), "CGO_ENABLED": "0"}
        run([*command, f"sigs.k8s.io/krew/cmd/krew@{KREW_VERSION}"], env=environment)
        (aside / "krew").rename(aside / krew_program().name)


def crane_program() -> Path:
    """A client of registries, and a registry itself (`crane registry serve`)."""
    return cache_folder() / f"crane-{CRANE_VERSION}" / "crane"


def install_crane() -> None:
    go_install(f"github.com/google/go-containerregistry/cmd/crane@{CRANE_VERSION}", crane_program().parent)


def cosign_program() -> Path:
    return cache_folder() / f"cosign-{COSIGN_VERSION}" / "cosign"


def install_cosign() -> None:
    go_install(f"github.com/sigstore/cosign/v2/cmd/cosign@{COSIGN_VERSION}", cosign_program().parent)


def install_coredns() -> None:
    go_install(f"github.com/coredns/coredns@{COREDNS_VERSION}", coredns_program().parent)


def install_kube_router() -> None:
    go_install(
        f"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@{KUBE_ROUTER_VERSION}", kube_router_program().parent
    )


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


def s3_server_program() -> Path:
    """A real S3 server over a folder (Versity's gateway)."""
    return cache_folder() / f"s3-server-{S3_SERVER_VERSION}" / "versitygw"


def install_s3_server() -> None:
    go_install(f"github.com/versity/versitygw/cmd/versitygw@{S3_SERVER_VERSION}", s3_server_program().parent)


def node_packages_missing() -> str | None:
    absent = [
        package for program, package in NODE_PACKAGES.items() if not (shutil.which(program) or Path(program).is_file())
    ]
    return f"Debian's packages {' '.join(absent)} are not here" if absent else None


def debian_mirror() -> str:
    """The mirror from which this machine has its own packages."""
    sources = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    return next((uri for uri in sources if uri.rstrip("/").endswith("/debian")), "http://deb.debian.org/debian")


def buildah(store: Path, *arguments: str) -> str:
    """Run buildah on an image store of its own, without a daemon."""
    environment = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "overlay")}
    return run(["buildah", "--root", str(store / "root"), "--runroot", str(store / "run"), *arguments], env=environment)


def remove_store(store: Path) -> None:
    """Overlay layers stay mounted where a build was killed."""
    with contextlib.suppress(PartError):
        buildah(store, "umount", "--all")
    shutil.rmtree(store, ignore_errors=True)


@contextlib.contextmanager
def image_store() -> Iterator[Path]:
    """A store for one build, which leaves an archive and nothing else."""
    with tempfile.TemporaryDirectory(prefix="brokergroup-images-") as folder:
        store = Path(folder)
        try:
            yield store
        finally:
            remove_store(store / "store")


@contextlib.contextmanager
def arm64_programs_run() -> Iterator[None]:
    """Let the kernel run ARM programs by QEMU for the length of a block, in every root: the kernel holds the emulator open.

    Needs root. One block at a time on a machine. Takes away afterwards what it set, also what a killed process left.
    """
    emulator = arm64_emulator()
    if emulator is None:
        raise PartError("no qemu-aarch64-static in the cache; expected the part qemu-arm64")
    # Not in the cache or TMPDIR: there may be several of those, and the machine has one kernel.
    with Path("/run", f"{ARM64_NAME}.lock").open("w") as lock, contextlib.ExitStack() as undo:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (BINFMT / "register").exists():
            run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
            undo.callback(run, ["umount", str(BINFMT)])
        forget_arm64_emulator()
        undo.callback(forget_arm64_emulator)
        # F: opened now, so that no root needs the file; P: the program sees the name by which it was called.
        entry = f":{ARM64_NAME}:M::{ARM64_MAGIC}:{ARM64_MASK}:{emulator}:PF"
        (BINFMT / "register").write_text(entry, encoding="ascii")
        yield


def forget_arm64_emulator() -> None:
    if (BINFMT / ARM64_NAME).exists():
        (BINFMT / ARM64_NAME).write_text("-1", encoding="ascii")


def install_arm64_emulator() -> None:
    """Not installed but unpacked: the package's own registration would stay."""
    unpack_package("qemu-user-static")


def make_base_root(root: Path, architecture: str | None = None) -> None:
    """Debian with its own Python and pip, as the image that it stands in for has them. Default: this machine's architecture."""
    packages = "python3,python3-pip,python3-venv,ca-certificates"
    options = ["--variant=minbase", f"--include={packages}", *([f"--arch={architecture}"] if architecture else [])]
    run(["nice", "debootstrap", *options, DEBIAN_RELEASE, str(root), debian_mirror()])
    # The official image lets pip install beside Debian's packages.
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    for leftover in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")]:
        leftover.unlink()
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    # Which certificates and which mirrors this machine trusts, the builds in this image trust too.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")


def install_base_image() -> None:
    with image_store() as folder:
        make_base_root(folder / "debian")
        commit_base_image(folder, BASE_IMAGE, base_image_archive())


def install_arm64_base_image() -> None:
    with arm64_programs_run(), image_store() as folder:
        make_base_root(folder / "debian", "arm64")
        commit_base_image(folder, BASE_IMAGE_ARM64, arm64_base_image_archive(), "--arch", "arm64")


def commit_base_image(folder: Path, name: str, archive: Path, *settings: str) -> None:
    """Make an image of `folder`/debian, as an archive."""
    certificates, store = "/etc/ssl/certs/ca-certificates.crt", folder / "store"
    variables = [f"SSL_CERT_FILE={certificates}", f"PIP_CERT={certificates}", "PATH=/usr/local/bin:/usr/sbin:/usr/bin"]
    environment = [word for variable in variables for word in ("--env", variable)]
    with built_aside(archive.parent) as aside:
        container = buildah(store, "from", "scratch").strip()
        buildah(store, "add", "-q", container, str(folder / "debian"), "/")
        buildah(store, "config", *environment, *settings, "--cmd", "python3", container)
        buildah(store, "commit", "-q", container, name)
        buildah(store, "rm", container)
        buildah(store, "push", name, f"docker-archive:{aside / 'image.tar'}:{name}")


def add_proxy(folder: Path) -> None:
    """RocketMQ's own image has one folder of jars for all its programs. What is there in another version stays as it is."""
    there = {artifact_of(one) for one in folder.iterdir()}
    for one in (proxy_home() / "lib").iterdir():
        if artifact_of(one) not in there:
            shutil.copy(one, folder)


def artifact_of(one: Path) -> str:
    """grpc-core-1.53.0.jar -> grpc-core."""
    return re.sub(r"-[0-9][^-]*(-SNAPSHOT)?(\.Final.*)?\.jar$", "", one.name)


def install_java_image() -> None:
    with built_aside(java_image_archive().parent) as aside, image_store() as folder:
        buildah(folder / "store", "pull", f"docker-archive:{base_image_archive()}")
        context = Path(shutil.copytree(HERE / "images" / "java", folder / "context"))
        shutil.copytree(rocketmq_home() / "lib", context / "lib")
        add_proxy(context / "lib")
        arguments = ["--build-arg", f"BASE={BASE_IMAGE}", "--build-arg", f"ROCKETMQ_VERSION={ROCKETMQ_VERSION}"]
        command = ["bud", "-q", "--pull-never", "--network", "host", *arguments, "-t", JAVA_IMAGE, str(context)]
        buildah(folder / "store", *command)
        buildah(folder / "store", "push", JAVA_IMAGE, f"docker-archive:{aside / 'image.tar'}:{JAVA_IMAGE}")


def prometheus_missing() -> str | None:
    absent = [name for name in ("prometheus", "promtool") if prometheus_program(name) is None]
    return f"no {' and no '.join(absent)} in {cache_folder()} or on the path" if absent else None


def install_prometheus() -> None:
    """Debian's package, unpacked and not installed: no service, no account, none of its thirteen friends."""
    unpack_package("prometheus")


def unpack_package(name: str) -> None:
    """Unpack a Debian package into the cache, in a folder with its version."""
    if shutil.which("apt-get") is None:
        raise PartError(f"needs Debian's package {name}, and there is no apt-get here")
    with tempfile.TemporaryDirectory() as download:
        folder = Path(download)
        folder.chmod(0o755)
        try:
            run(["apt-get", "download", "-q", name], cwd=folder)
        except PartError:
            if os.geteuid() != 0:
                raise
            with one_apt:
                run(["apt-get", "update", "-q"])
            run(["apt-get", "download", "-q", name], cwd=folder)
        package = next(folder.glob(f"{name}_*.deb"))
        version = run(["dpkg-deb", "--field", str(package), "Version"]).strip()
        # Without the epoch: a colon ends a field where the kernel learns of an emulator.
        with built_aside(cache_folder() / f"{name}-{version.rpartition(':')[2]}") as aside:
            run(["dpkg", "-x", str(package), str(aside)])


def openssl_missing() -> str | None:
    return None if shutil.which("openssl") else "no openssl on the path"


def package_index_missing() -> str | None:
    """Whether pip gets an answer about a package that this project uses, and a virtual environment can be made."""
    if importlib.util.find_spec("ensurepip") is None:
        return "python3 has no ensurepip (Debian's python3-venv)"
    command = ["python3", "-m", "pip", "--disable-pip-version-check", "--retries", "1", "index", "versions", "uv"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"pip gets no answer from its index: {done.stderr.strip()[-200:]}"


def install_package_index() -> None:
    raise PartError("a package index that pip can reach is needed, and pip in python3")


def root_missing() -> str | None:
    return None if os.geteuid() == 0 else "not running as root"


def install_root() -> None:
    raise PartError("run as root: pods in network namespaces need it")


def netns_missing() -> str | None:
    """Network namespaces are there only if one can be made: try it."""
    if os.geteuid() != 0:
        return "not running as root"
    if shutil.which("ip") is None:
        return "no ip on the path (Debian's iproute2)"
    name = f"bgprobe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"ip netns add failed: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None


def nft_missing() -> str | None:
    return None if shutil.which("nft") else "no nft on the path (Debian's nftables)"


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("root", "running as root", root_missing, install_root),
        Part("java", "a JDK", java_missing, lambda: apt_install(f"openjdk-{MINIMUM_JAVA}-jdk-headless")),
        Part("maven", "Maven", maven_missing, lambda: apt_install("maven"), ("java",)),
        Part("go", "the Go toolchain", go_missing, install_go),
        Part("netns", "network namespaces", netns_missing, lambda: apt_install("iproute2"), ("root",)),
        Part("nft", "nftables, to cut networks", nft_missing, lambda: apt_install("nftables"), ("root",)),
        Part(
            "rocketmq",
            f"Java RocketMQ {ROCKETMQ_VERSION}: broker, NameServer, controller, mqadmin, client",
            lambda: java_missing() or no_files(jar(rocketmq_home(), "broker")),
            install_rocketmq,
            ("java", "maven"),
        ),
        Part(
            "older-rocketmq",
            f"Java RocketMQ {OLDER_ROCKETMQ_VERSION}: broker, NameServer, client",
            lambda: (
                java_missing() or no_files(jar(rocketmq_home(OLDER_ROCKETMQ_VERSION), "broker", OLDER_ROCKETMQ_VERSION))
            ),
            lambda: install_rocketmq(OLDER_ROCKETMQ_VERSION),
            ("java", "maven"),
        ),
        Part(
            "newest-rocketmq",
            f"Java RocketMQ {NEWEST_ROCKETMQ_VERSION}: broker, controller; NameServer and client of {ROCKETMQ_VERSION}",
            lambda: (
                java_missing()
                or no_files(jar(rocketmq_home(NEWEST_ROCKETMQ_VERSION), "broker", NEWEST_ROCKETMQ_VERSION))
            ),
            lambda: install_rocketmq(NEWEST_ROCKETMQ_VERSION),
            ("java", "maven"),
        ),
        Part(
            "table-rocketmq",
            f"Java RocketMQ {', '.join(TABLE_VERSIONS)}: broker, NameServer, controller",
            lambda: (
                java_missing()
                or no_files(*(jar(rocketmq_home(version), "broker", version) for version in TABLE_VERSIONS))
            ),
            install_table_versions,
            ("java", "maven"),
        ),
        Part(
            "rocketmq-proxy",
            f"Java RocketMQ Proxy and BrokerContainer {ROCKETMQ_VERSION}",
            lambda: java_missing() or no_files(jar(proxy_home(), "proxy"), jar(proxy_home(), "container")),
            install_proxy,
            ("java", "maven"),
        ),
        Part(
            "rocketmq-python-client",
            f"RocketMQ's gRPC client {PYTHON_CLIENT_VERSION} for Python",
            lambda: no_files(python_client_folder() / "rocketmq"),
            install_python_client,
            ("package-index",),
        ),
        Part(
            "older-java-controller",
            f"Java RocketMQ controller {OLDER_CONTROLLER_VERSION}",
            lambda: (
                java_missing()
                or no_files(jar(controller_home(OLDER_CONTROLLER_VERSION), "controller", OLDER_CONTROLLER_VERSION))
            ),
            install_older_controller,
            ("java", "maven"),
        ),
        Part(
            "kube-apiserver",
            f"kube-apiserver and kubectl {KUBERNETES_VERSION}",
            lambda: (
                openssl_missing()
                or no_files(kubernetes_folder() / "kube-apiserver", kubernetes_folder() / "kubectl", etcd_program())
            ),
            install_kubernetes,
            ("go", "etcd", "openssl"),
        ),
        Part(
            "kubectl",
            f"kubectl {KUBERNETES_VERSION}, built with kube-apiserver",
            lambda: no_files(kubernetes_folder() / "kubectl"),
            install_kubernetes,
            ("go",),
        ),
        Part("krew", f"krew {KREW_VERSION}", lambda: no_files(krew_program()), install_krew, ("go", "kubectl")),
        Part("openssl", "openssl, for the API server's key", openssl_missing, lambda: apt_install("openssl")),
        Part("package-index", "Python's package index", package_index_missing, install_package_index),
        Part("etcd", f"etcd {ETCD_VERSION}", lambda: no_files(etcd_program()), install_etcd, ("go",)),
        Part("helm", f"Helm {HELM_VERSION}", lambda: no_files(helm_program()), install_helm, ("go",)),
        Part(
            "actionlint",
            f"actionlint {ACTIONLINT_VERSION}",
            lambda: no_files(actionlint_program()),
            install_actionlint,
            ("go",),
        ),
        Part(
            "alertmanager",
            f"Alertmanager {ALERTMANAGER_VERSION}",
            lambda: no_files(alertmanager_program()),
            install_alertmanager,
            ("go",),
        ),
        Part(
            "browser",
            f"Chromium, playwright {PLAYWRIGHT_VERSION}, axe-core {AXE_VERSION}",
            lambda: no_files(chromium_program(), playwright_folder() / "playwright", axe_program()),
            install_browser,
            ("package-index",),
        ),
        Part("prometheus", "Prometheus and promtool", prometheus_missing, install_prometheus),
        Part(
            "node-packages",
            "containerd, runc, CNI, buildah, debootstrap",
            node_packages_missing,
            lambda: apt_install(*NODE_PACKAGES.values()),
            ("root",),
        ),
        Part(
            "node-programs",
            f"{', '.join(NODE_PROGRAMS)} {KUBERNETES_VERSION}",
            lambda: no_files(*(node_folder() / name for name in NODE_PROGRAMS)),
            install_node_programs,
            ("go",),
        ),
        Part("pause", "what holds a pod open", lambda: no_files(pause_program()), install_pause, ("go",)),
        Part(
            "s3-server",
            f"an S3 server, versitygw {S3_SERVER_VERSION}",
            lambda: no_files(s3_server_program()),
            install_s3_server,
            ("go",),
        ),
        Part("crane", f"crane {CRANE_VERSION}", lambda: no_files(crane_program()), install_crane, ("go",)),
        Part("cosign", f"cosign {COSIGN_VERSION}", lambda: no_files(cosign_program()), install_cosign, ("go",)),
        Part("coredns", f"CoreDNS {COREDNS_VERSION}", lambda: no_files(coredns_program()), install_coredns, ("go",)),
        Part(
            "kube-router",
            f"kube-router {KUBE_ROUTER_VERSION}",
            lambda: no_files(kube_router_program()),
            install_kube_router,
            ("go",),
        ),
        Part(
            "csi",
            f"a CSI driver that takes snapshots, external-snapshotter {EXTERNAL_SNAPSHOTTER_VERSION}",
            csi_missing,
            install_csi,
            ("go",),
        ),
        Part(
            "base-image",
            f"Debian {DEBIAN_RELEASE} with Python, in place of the Dockerfile's base image",
            lambda: no_files(base_image_archive()),
            install_base_image,
            ("node-packages",),
        ),
        Part(
            "qemu-arm64",
            "QEMU, which runs programs for 64-bit ARM",
            lambda: None if arm64_emulator() else f"no qemu-aarch64-static in {cache_folder()}",
            install_arm64_emulator,
            ("root",),
        ),
        Part(
            "base-image-arm64",
            f"Debian {DEBIAN_RELEASE} with Python for 64-bit ARM",
            lambda: no_files(arm64_base_image_archive()),
            install_arm64_base_image,
            ("node-packages", "qemu-arm64"),
        ),
        Part(
            "rocketmq-image",
            f"the image of Java RocketMQ {ROCKETMQ_VERSION}",
            lambda: no_files(java_image_archive()),
            install_java_image,
            ("rocketmq", "rocketmq-proxy", "base-image"),
        ),
    )
}


def missing(name: str) -> str | None:
    """Why the part is not here, or None if it is. An unknown name is the caller's mistake."""
    try:
        return PARTS[name].missing()
    except KeyError:
        raise PartError(f"part {name!r} is unknown; expected one of {', '.join(PARTS)}") from None


def bring(name: str) -> None:
    """Install a part and what it needs, unless it is here; afterwards it must be."""
    if missing(name) is None:
        print(f"{name}: here", file=sys.stderr)
        return
    part = PARTS[name]
    for needed in part.needs:
        bring(needed)
    print(f"{name}: installing {part.what}", file=sys.stderr, flush=True)
    if missing(name) is not None:
        part.install()
    reason = missing(name)
    if reason is not None:
        raise PartError(f"installed, and still missing: {reason}")


def bring_all(names: list[str]) -> dict[str, str]:
    """Bring every part named, one installer at a time on a machine; hand back what failed and why.

    What Go builds takes a processor for many minutes, and what the registries send takes none: they go side by side.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    built = [name for name in names if "go" in everything_needed(name)]
    fetched = [name for name in names if name not in built]
    with (cache_folder() / ".lock").open("w") as lock, ThreadPoolExecutor(2) as side_by_side:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed: dict[str, str] = {}
        for part_of_them in side_by_side.map(bring_in_order, (built, fetched)):
            failed |= part_of_them
    return failed


def everything_needed(name: str) -> set[str]:
    """A part and what it needs, and what that needs."""
    return {name}.union(*(everything_needed(needed) for needed in PARTS[name].needs))


def bring_in_order(names: list[str]) -> dict[str, str]:
    """Bring one part after the other; hand back what failed and why."""
    failed: dict[str, str] = {}
    for name in names:
        try:
            bring(name)
        except PartError as error:
            failed[name] = str(error)
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
    return failed


def report() -> dict[str, str | None]:
    """Print to stderr which parts are present, and why others are missing."""
    state = {name: missing(name) for name in PARTS}
    for name, reason in state.items():
        print(f"{name:15} {'here' if reason is None else 'missing: ' + reason}   ({PARTS[name].what})", file=sys.stderr)
    return state


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--all", action="store_true", help="every part")
    parser.add_argument("--list", action="store_true", help="what is here, what is missing and why")
    parser.add_argument(
        "--missing", action="store_true", help="install nothing: say which of the parts are missing and why"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"part {', '.join(unknown)} is unknown; expected one of {', '.join(PARTS)}")
    if not (options.parts or options.all or options.list):
        parser.error("name a part, or give --all or --list")
    if options.missing:
        reasons = {name: reason for name in options.parts if (reason := missing(name)) is not None}
        print("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        return 1 if reasons else 0
    failed = bring_all(list(PARTS) if options.all else options.parts)
    if options.list:
        report()
    print(json.dumps({"asked": list(PARTS) if options.all else options.parts, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
