"""The operator's image for 64-bit ARM, pulled by digest from the registry that the release was published into: its programs run.

QEMU emulates the processor, the kernel is this machine's. The clients that send and read back are this machine's own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.demo.client import DemoProducer, Ledger, read_keys
from tests.interop.lab import GROUP, PYTHON, SETTINGS, Lab, Member
from tests.real.parts import base_images
from tests.real.parts.java import broker_properties, write_properties
from tests.real.parts.process import start
from tests.real.parts.steps import PartError, run
from tests.release.publication import PARTS
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rocketmq_remoting.controller_protocol import ReplicasInfo

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "opt/brokergroup/lib/python3.11/site-packages"
ELF, ELF_MACHINE, AARCH64 = b"\x7fELF", slice(18, 20), (183).to_bytes(2, "little")
COMMAND_SECONDS = 900.0
SEND_SECONDS = 20.0
TOPIC, QUEUES, MESSAGES = "arm", 4, 50
# The programs run at a tenth of their speed or less, on a machine that may be busy.
PATIENT: dict[str, Any] = {
    **SETTINGS,
    "brokerHeartbeatInterval": 1000,
    "controllerHeartBeatTimeoutMills": 20_000,
    "slaveTimeout": 20_000,
}
# Mounts of a namespace of the program's own, which end with it; the last program is the same process as the first.
IN_IMAGE = """
mkdir -p "$1/proc" "$1/dev"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot --userspec=65532:65532 "$@"
"""

pytestmark = [pytest.mark.real(*PARTS), pytest.mark.timeout(5400)]


def in_image(root: Path, *command: str) -> list[str]:
    """Return the command that runs this one in the image, as its user."""
    environment = ["PATH=/opt/brokergroup/bin:/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"]
    words = [str(root), "/usr/bin/env", "-i", *environment, *command]
    return ["nice", "unshare", "--mount", "sh", "-euc", IN_IMAGE, "sh", *words]


def output_of(root: Path, *command: str) -> str:
    done = subprocess.run(
        in_image(root, *command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_arm_programs_run_only_as_long_as_they_are_asked_for() -> None:
    during = set()

    def fails() -> None:
        with base_images.arm64_programs_run():
            during.update(emulators())
            run(["sh", "-c", "exit 3"])

    was_mounted, before = base_images.BINFMT.is_mount(), emulators() - {base_images.ARM64_NAME}
    with pytest.raises(PartError, match="exit code 3"):
        fails()
    assert base_images.ARM64_NAME in during
    assert (base_images.BINFMT.is_mount(), emulators()) == (was_mounted, before)


def test_two_builds_take_turns_also_with_other_temporary_folders(tmp_path: Path) -> None:
    """Each takes the emulator away at its end."""
    program = "from tests.real.parts import base_images\nwith base_images.arm64_programs_run(): pass"
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with base_images.arm64_programs_run():
        second = start("second", [sys.executable, "-c", program], log=tmp_path / "second.log", env=environment)
        second.wait_until(lambda: waits_for_a_lock(second.pid), what="it waits for the first one")
    assert second.process.wait(timeout=60) == 0


def waits_for_a_lock(process: int) -> bool:
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any("->" in line and str(process) in line.split() for line in lines)


def emulators() -> set[str]:
    """Return what the kernel's table of emulators has."""
    return {path.name for path in base_images.BINFMT.glob("*")}


def test_every_program_and_library_of_the_image_is_for_arm(image: Path) -> None:
    machines = {}
    for path in image.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(ELF_MACHINE.stop)
            if head.startswith(ELF):
                machines[path.relative_to(image)] = head[ELF_MACHINE]
    assert {path: machine for path, machine in machines.items() if machine != AARCH64} == {}
    modules = {path for path in machines if path.is_relative_to(PACKAGES)}
    assert modules >= {path.relative_to(image) for path in (image / PACKAGES).rglob("*.so")}
    assert modules
    assert [path for path in machines if path.name.startswith("python3")]


def test_the_commands_and_every_compiled_module_run(image: Path) -> None:
    """`os.uname` is what `uname -m` prints; the image has no `uname`."""
    assert output_of(image, "python", "-c", "import os; print(os.uname().machine)").strip() == "aarch64"
    version = output_of(image, "brokergroup", "--version").strip()
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "--controller-address" in output_of(image, "brokergroup", "operator", "--help")
    names = sorted(
        ".".join([*path.relative_to(image / PACKAGES).parts[:-1], path.name.partition(".")[0]])
        for path in (image / PACKAGES).rglob("*.so")
    )
    load = "import importlib, sys; print([importlib.import_module(name).__name__ for name in sys.argv[1:]])"
    assert output_of(image, "python", "-c", load, *names).strip() == str(names)


async def test_issue_154_a_group_on_arm_fails_over_and_nothing_acknowledged_is_lost(image: Path) -> None:
    """apache/rocketmq-operator #154: amd64 only. Here a controller and three Python replicas."""
    async with group_in(image) as group:
        first = await group.until_whole()
        async with sending_to(group) as ledger:
            await group.until_acknowledged(ledger, MESSAGES)
            second = await group.fail_over()
            assert second.name != first.name
            await group.until_acknowledged(ledger, MESSAGES)
            await group.until_whole()
        last = await group.until_whole()
        acknowledged = {one.key for one in ledger.acknowledgements}
        assert len(acknowledged) >= 2 * MESSAGES
        assert acknowledged - await read_keys(last.address, TOPIC, QUEUES) == set()


def test_the_demo_on_arm_fails_over_twice_and_loses_nothing(image: Path) -> None:
    """The operator, the embedded API, a group with its fences and the producer, all in the image."""
    shutil.copy(ROOT / "examples" / "quickstart.yaml", image / "tmp")
    where = ("--manifest", "/tmp/quickstart.yaml", "--directory", "/tmp/demo")
    verdict = json.loads(output_of(image, "brokergroup", "demo", "--once", *where).splitlines()[-1])
    killed, frozen = verdict["failovers"]
    assert (killed["outcome"], frozen["outcome"]) == ("completed", "completed")
    assert (frozen["trigger"], frozen["unfenced"]) == ("silence", False)
    assert verdict["final_master"] == frozen["to"]
    assert verdict["epochs"] == sorted(set(verdict["epochs"]))
    assert (verdict["acked"] > 200, verdict["lost"]) == (True, 0)


class ImageGroup(Lab):
    """A controller and Python replicas that run in the image; `route` is the master as the controller last answered."""

    def __init__(self, root: Path) -> None:
        super().__init__(folder=root / "tmp" / "group", java_version="none")
        self.root = root
        self.route: str | None = None
        self.folder.mkdir()
        self.folder.chmod(0o777)

    def start(self, kinds: dict[str, str]) -> None:
        self.controller_address = f"127.0.0.1:{free_port()}"
        command = in_image(self.root, "brokergroup", "controller", "--listen", self.controller_address)
        self.controller = start("controller", command, log=self.folder / "controller.log")
        self.members = {name: Member(name, kind, self.folder / name) for name, kind in kinds.items()}

    def start_member(self, name: str) -> None:
        member, port = self.members[name], free_port(neighbours=2)
        inside = Path("/") / member.folder.relative_to(self.root)
        properties = broker_properties(inside, controllers=self.controller_address, name_server="")
        properties |= {**PATIENT, "listenPort": port, "haListenPort": free_port()}
        write_properties(member.folder / "broker.conf", properties)
        member.folder.chmod(0o777)
        command = in_image(self.root, "brokergroup", "replica", "--config", str(inside / "broker.conf"))
        member.process = start(name, command, log=member.folder / "broker.log")
        member.address = f"127.0.0.1:{port}"

    async def replicas(self) -> ReplicasInfo | None:
        info = await super().replicas()
        if info is not None:
            self.route = info.master_address or None
        return info

    async def until_acknowledged(self, ledger: Ledger, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = len(ledger.acknowledgements) + more

        async def enough() -> bool | None:
            await self.replicas()
            return len(ledger.acknowledgements) >= wanted or None

        await self.eventually(enough, f"{wanted} acknowledged; failures: {ledger.reasons[-3:]}")


@asynccontextmanager
async def group_in(root: Path) -> AsyncIterator[ImageGroup]:
    group = ImageGroup(root)
    try:
        group.start({"a": PYTHON, "b": PYTHON, "c": PYTHON})
        for name in group.members:
            group.start_member(name)
        yield group
    finally:
        await group.stop()


@asynccontextmanager
async def sending_to(group: ImageGroup) -> AsyncIterator[Ledger]:
    """Send to the master for the length of a block."""
    producer = DemoProducer(
        route=lambda: group.route, broker_name=GROUP, topic=TOPIC, send_timeout_seconds=SEND_SECONDS
    )
    stop = asyncio.Event()
    task = asyncio.create_task(producer.run(stop))
    try:
        yield producer.ledger
    finally:
        stop.set()
        await task
