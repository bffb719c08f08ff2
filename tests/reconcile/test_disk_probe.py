"""The broker's liveness probe, run by a shell on a stand-in for its disk: it fails only by not ending.

A FIFO that no process reads stands in for a file on a disk that hangs: opening it for writing never ends.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.reconcile.render.containers import broker_container
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMPLEMENTATIONS = ("Java", "Python")
OF_TWO_DISKS = {"commitLog": {"size": "1Gi"}}


def probe(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = broker_container(b.group(**spec).spec, b.SETTINGS)["livenessProbe"]
    return found


class Disks:
    """The folders of a broker."""

    def __init__(self, folder: Path) -> None:
        self.store, self.commit_log = folder / "store", folder / "commitlog"
        self.hung: list[Path] = []
        for one in (self.store, self.commit_log):
            one.mkdir()

    def hang(self, folder: Path) -> None:
        os.mkfifo(folder / ".disk-probe")
        self.hung.append(folder / ".disk-probe")

    def ends(self, *, programs: str | None = None, **spec: Any) -> bool:
        """Whether the probe's command ends, and with 0. Its output is waited for, as a container runtime does."""
        environment = {
            "PATH": os.environ["PATH"] if programs is None else programs,
            "STORE_DIR": str(self.store),
            "COMMIT_LOG_DIR": str(self.commit_log),
        }
        shell, *arguments = probe(**spec)["exec"]["command"]
        assert shell == "sh"
        # What hangs does so for ever: a longer wait finds the same.
        seconds = 2.0 if self.hung else 600.0
        try:
            done = subprocess.run(
                ["/bin/sh", *arguments], env=environment, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        assert (done.stdout, done.stderr) == (b"", b"")
        return done.returncode == 0

    def answer(self) -> None:
        """Let what still waits go on."""
        for one in self.hung:
            os.close(os.open(one, os.O_RDONLY | os.O_NONBLOCK))


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    made.answer()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_disk_that_answers_passes(disks: Disks, implementation: str) -> None:
    assert disks.ends(implementation=implementation)
    assert (disks.store / ".disk-probe").stat().st_size == 512
    assert list(disks.commit_log.iterdir()) == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_disk_that_hangs_fails_and_holds_up_only_its_own_write(disks: Disks, implementation: str) -> None:
    """At the timeout the runtime kills the probe's process, and waits until it and its output have ended."""
    disks.hang(disks.store)
    assert not disks.ends(implementation=implementation)


def test_the_disk_of_the_commit_log_counts_where_it_is_another(disks: Disks) -> None:
    assert disks.ends(storage=OF_TWO_DISKS)
    (disks.commit_log / ".disk-probe").unlink()
    disks.hang(disks.commit_log)
    assert not disks.ends(storage=OF_TWO_DISKS)


def test_an_error_of_the_disk_is_an_answer(disks: Disks) -> None:
    """No restart mends a full disk, a lost folder, or an image without `dd`; it would be one after another."""
    (disks.store / ".disk-probe").symlink_to("/dev/full")
    assert disks.ends(), "no space left"
    (disks.store / ".disk-probe").unlink()
    disks.store.rmdir()
    assert disks.ends(), "no such folder"
    assert disks.ends(programs="/nowhere"), "no dd"


def test_a_disk_may_be_slow_for_twenty_seconds_and_hang_for_a_minute() -> None:
    by_default = probe()
    assert by_default["timeoutSeconds"] == 20
    assert by_default["periodSeconds"] * by_default["failureThreshold"] == 60
    patient = {"livenessProbe": {"timeoutSeconds": 60, "periodSeconds": 60, "failureThreshold": 5}}
    chosen = probe(podTemplate={"spec": {"broker": patient}})
    assert chosen["periodSeconds"] * chosen["failureThreshold"] == 300
    assert chosen["exec"] == by_default["exec"]
