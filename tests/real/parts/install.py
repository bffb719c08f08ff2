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
import fcntl
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.real.parts import base_images, go_programs, on_machine  # noqa: E402
from tests.real.parts.base_images import buildah  # noqa: E402
from tests.real.parts.go_programs import GO_PROGRAMS, build_kubernetes, program  # noqa: E402
from tests.real.parts.on_machine import no_program  # noqa: E402
from tests.real.parts.steps import (  # noqa: E402
    PIP_INSTALL,
    PartError,
    apt_install,
    built_aside,
    cache_folder,
    no_files,
    run,
    unpack_package,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
PLAYWRIGHT_VERSION = "1.65.2"
AXE_VERSION = "4.14.1"
KUBERNETES_PROGRAMS = ("kube-apiserver", "kubectl")
NODE_PROGRAMS = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
JAVA_IMAGE = f"docker.io/apache/rocketmq:{ROCKETMQ_VERSION}"


@dataclass(frozen=True)
class Part:
    """One part of real tests: `missing` returns why it is absent (None: present), `install` installs it."""

    name: str
    what: str
    missing: Callable[[], str | None]
    install: Callable[[], None]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Jars:
    """Java programs of RocketMQ, in some versions, by the pom in a folder; they are here if these artifacts' jars are."""

    what: str
    versions: tuple[str, ...] = (ROCKETMQ_VERSION,)
    folder: str = ""
    artifacts: tuple[str, ...] = ("broker",)


JARS = {
    "rocketmq": Jars("broker, NameServer, controller, mqadmin, client"),
    "older-rocketmq": Jars("broker, NameServer, client", (OLDER_ROCKETMQ_VERSION,)),
    "newest-rocketmq": Jars(
        f"broker, controller; NameServer and client of {ROCKETMQ_VERSION}", (NEWEST_ROCKETMQ_VERSION,)
    ),
    "table-rocketmq": Jars("broker, NameServer, controller", TABLE_VERSIONS),
    "rocketmq-proxy": Jars("Proxy and BrokerContainer", folder="proxy", artifacts=("proxy", "container")),
    "older-java-controller": Jars("controller", (OLDER_CONTROLLER_VERSION,), "controller", ("controller",)),
}


krew_program = partial(program, "krew")
etcd_program = partial(program, "etcd")
helm_program = partial(program, "helm")
actionlint_program = partial(program, "actionlint")
alertmanager_program = partial(program, "alertmanager")
pause_program = partial(program, "pause")
s3_server_program = partial(program, "s3-server")
crane_program = partial(program, "crane")
cosign_program = partial(program, "cosign")
coredns_program = partial(program, "coredns")
kube_router_program = partial(program, "kube-router")


def rocketmq_home(version: str = ROCKETMQ_VERSION, folder: str = "") -> Path:
    """The folder whose lib/ holds the jars of the Java brokers of this version, or of the programs of another pom."""
    return cache_folder() / "-".join(filter(None, ("rocketmq", folder, version)))


def proxy_home() -> Path:
    """The folder whose lib/ holds the jars of the Java Proxy and of the BrokerContainer."""
    return rocketmq_home(ROCKETMQ_VERSION, "proxy")


def controller_home(version: str = ROCKETMQ_VERSION) -> Path:
    """The folder whose lib/ holds a Java controller of this version."""
    return rocketmq_home(version, "" if version in (ROCKETMQ_VERSION, NEWEST_ROCKETMQ_VERSION) else "controller")


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


def kubernetes_folder() -> Path:
    """The folder of kube-apiserver and kubectl."""
    return cache_folder() / f"kubernetes-{KUBERNETES_VERSION}"


def node_folder() -> Path:
    """The folder of the programs that make pods: controller-manager, scheduler, kube-proxy, kubelet."""
    return cache_folder() / f"kubernetes-node-{KUBERNETES_VERSION}"


def java_image_archive() -> Path:
    """The image of Java's brokers, NameServer and Proxy, as a docker archive."""
    return cache_folder() / f"rocketmq-image-with-proxy-and-container-{ROCKETMQ_VERSION}" / "image.tar"


def prometheus_program(name: str = "prometheus") -> Path | None:
    """Debian's prometheus or promtool: the newest one in the cache, else one on the path."""
    unpacked = sorted(cache_folder().glob(f"prometheus-*/usr/bin/{name}"))
    if unpacked:
        return unpacked[-1]
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def prometheus_missing() -> str | None:
    absent = [name for name in ("prometheus", "promtool") if prometheus_program(name) is None]
    return f"no {' and no '.join(absent)} in {cache_folder()} or on the path" if absent else None


def missing_jars(jars: Jars) -> str | None:
    return on_machine.java_missing() or no_files(
        *(path for version in jars.versions for path in jar_files(jars, version))
    )


def jar_files(jars: Jars, version: str) -> list[Path]:
    lib = rocketmq_home(version, jars.folder) / "lib"
    return [lib / f"rocketmq-{artifact}-{version}.jar" for artifact in jars.artifacts]


def copy_jars(jars: Jars) -> None:
    """The jars that a pom names, in each version that is not here."""
    for version in jars.versions:
        if no_files(*jar_files(jars, version)):
            with built_aside(rocketmq_home(version, jars.folder)) as aside:
                versions = [
                    f"-Drocketmq.version={version}",
                    f"-Drocketmq.rest={REST_OF_ROCKETMQ.get(version, version)}",
                ]
                pom = HERE / "rocketmq" / jars.folder / "pom.xml"
                command = ["mvn", "-q", "-B", "-f", str(pom), *versions, "dependency:copy-dependencies"]
                run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={aside / 'lib'}"])


def install_python_client() -> None:
    """Beside the project's own environment, which has other versions of the same packages."""
    with built_aside(python_client_folder()) as aside:
        wanted = HERE / "rocketmq" / "python-client" / "requirements.txt"
        run([*PIP_INSTALL, "--target", str(aside), "--requirement", str(wanted)])


def install_browser() -> None:
    """Debian's Chromium; playwright without browsers of its own; axe-core."""
    if not chromium_program().exists():
        apt_install("chromium")
    if shutil.which("npm") is None:
        raise PartError("no npm on the path: axe-core comes from npm's registry (Debian's package npm)")
    with built_aside(browser_folder()) as aside:
        run([*PIP_INSTALL, "--target", str(aside / "python"), f"playwright=={PLAYWRIGHT_VERSION}"])
        run(["npm", "install", "--silent", "--no-audit", "--prefix", str(aside), f"axe-core@{AXE_VERSION}"])


def install_java_image() -> None:
    with built_aside(java_image_archive().parent) as aside, base_images.image_store() as folder:
        buildah(folder / "store", "pull", f"docker-archive:{base_images.base_image_archive()}")
        context = Path(shutil.copytree(HERE / "images" / "java", folder / "context"))
        shutil.copytree(rocketmq_home() / "lib", context / "lib")
        add_proxy(context / "lib")
        arguments = [
            "--build-arg",
            f"BASE={base_images.BASE_IMAGE}",
            "--build-arg",
            f"ROCKETMQ_VERSION={ROCKETMQ_VERSION}",
        ]
        command = ["bud", "-q", "--pull-never", "--network", "host", *arguments, "-t", JAVA_IMAGE, str(context)]
        buildah(folder / "store", *command)
        buildah(folder / "store", "push", JAVA_IMAGE, f"docker-archive:{aside / 'image.tar'}:{JAVA_IMAGE}")


def add_proxy(folder: Path, bring: Callable[[Path, Path], object] = shutil.copy) -> None:
    """RocketMQ's own image has one folder of jars for all its programs. What is there in another version stays as it is."""
    there = {artifact_of(one) for one in folder.iterdir()}
    for one in (proxy_home() / "lib").iterdir():
        if artifact_of(one) not in there:
            bring(one, folder / one.name)


def artifact_of(one: Path) -> str:
    """grpc-core-1.53.0.jar -> grpc-core."""
    return re.sub(r"-[0-9][^-]*(-SNAPSHOT)?(\.Final.*)?\.jar$", "", one.name)


def by_hand(advice: str) -> Callable[[], None]:
    """Return the installation of what has to be on the machine."""

    def refuse() -> None:
        raise PartError(advice)

    return refuse


NO_GO = (
    f"Go {'.'.join(map(str, on_machine.MINIMUM_GO))} or newer has to be on the machine: Debian 12's golang package is 1.19, "
    "too old for Kubernetes 1.35; install Go by hand and put its bin folder on the path"
)
NO_INDEX = "a package index that pip can reach is needed, and pip in python3"
JAVA_PARTS = [
    Part(
        name,
        f"Java RocketMQ {', '.join(jars.versions)}: {jars.what}",
        partial(missing_jars, jars),
        partial(copy_jars, jars),
        ("java", "maven"),
    )
    for name, jars in JARS.items()
]
GO_PARTS = [
    Part(
        name,
        f"{one.what} {one.version}",
        partial(go_programs.program_missing, name),
        partial(go_programs.build_go_program, name),
        one.needs,
    )
    for name, one in GO_PROGRAMS.items()
]
PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part(
            "root",
            "running as root",
            on_machine.root_missing,
            by_hand("run as root: pods in network namespaces need it"),
        ),
        Part(
            "java",
            "a JDK",
            on_machine.java_missing,
            partial(apt_install, f"openjdk-{on_machine.MINIMUM_JAVA}-jdk-headless"),
        ),
        Part("maven", "Maven", partial(no_program, "mvn"), partial(apt_install, "maven"), ("java",)),
        Part("go", "the Go toolchain", on_machine.go_missing, by_hand(NO_GO)),
        Part("netns", "network namespaces", on_machine.netns_missing, partial(apt_install, "iproute2"), ("root",)),
        Part(
            "nft",
            "nftables, to cut networks",
            partial(no_program, "nft", " (Debian's nftables)"),
            partial(apt_install, "nftables"),
            ("root",),
        ),
        *JAVA_PARTS,
        *GO_PARTS,
        Part(
            "rocketmq-python-client",
            f"RocketMQ's gRPC client {PYTHON_CLIENT_VERSION} for Python",
            lambda: no_files(python_client_folder() / "rocketmq"),
            install_python_client,
            ("package-index",),
        ),
        Part(
            "kube-apiserver",
            f"kube-apiserver and kubectl {KUBERNETES_VERSION}",
            lambda: (
                no_program("openssl")
                or no_files(kubernetes_folder() / "kube-apiserver", kubernetes_folder() / "kubectl", etcd_program())
            ),
            lambda: build_kubernetes(KUBERNETES_PROGRAMS, KUBERNETES_VERSION, kubernetes_folder()),
            ("go", "etcd", "openssl"),
        ),
        Part(
            "kubectl",
            f"kubectl {KUBERNETES_VERSION}, built with kube-apiserver",
            lambda: no_files(kubernetes_folder() / "kubectl"),
            lambda: build_kubernetes(KUBERNETES_PROGRAMS, KUBERNETES_VERSION, kubernetes_folder()),
            ("go",),
        ),
        Part(
            "openssl",
            "openssl, for the API server's key",
            partial(no_program, "openssl"),
            partial(apt_install, "openssl"),
        ),
        Part("package-index", "Python's package index", on_machine.package_index_missing, by_hand(NO_INDEX)),
        Part(
            "browser",
            f"Chromium, playwright {PLAYWRIGHT_VERSION}, axe-core {AXE_VERSION}",
            lambda: no_files(chromium_program(), playwright_folder() / "playwright", axe_program()),
            install_browser,
            ("package-index",),
        ),
        Part("prometheus", "Prometheus and promtool", prometheus_missing, partial(unpack_package, "prometheus")),
        Part(
            "node-packages",
            "containerd, runc, CNI, buildah, debootstrap",
            on_machine.node_packages_missing,
            partial(apt_install, *on_machine.NODE_PACKAGES.values()),
            ("root",),
        ),
        Part(
            "node-programs",
            f"{', '.join(NODE_PROGRAMS)} {KUBERNETES_VERSION}",
            lambda: no_files(*(node_folder() / name for name in NODE_PROGRAMS)),
            lambda: build_kubernetes(NODE_PROGRAMS, KUBERNETES_VERSION, node_folder()),
            ("go",),
        ),
        Part(
            "csi",
            f"a CSI driver that takes snapshots, external-snapshotter {go_programs.EXTERNAL_SNAPSHOTTER_VERSION}",
            go_programs.csi_missing,
            go_programs.install_csi,
            ("go",),
        ),
        Part(
            "base-image",
            f"Debian {base_images.DEBIAN_RELEASE} with Python, in place of the Dockerfile's base image",
            lambda: no_files(base_images.base_image_archive()),
            base_images.install_base_image,
            ("node-packages",),
        ),
        Part(
            "qemu-arm64",
            "QEMU, which runs programs for 64-bit ARM",
            lambda: None if base_images.arm64_emulator() else f"no qemu-aarch64-static in {cache_folder()}",
            # Not installed but unpacked: the package's own registration would stay.
            partial(unpack_package, "qemu-user-static"),
            ("root",),
        ),
        Part(
            "base-image-arm64",
            f"Debian {base_images.DEBIAN_RELEASE} with Python for 64-bit ARM",
            lambda: no_files(base_images.arm64_base_image_archive()),
            base_images.install_arm64_base_image,
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
