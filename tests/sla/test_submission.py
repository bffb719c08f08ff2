"""A driver in a pod of its own: the process that submitted it ends as it ended, and never well without a word of it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sla_reports.pod_entrypoint import exit_codes, is_apart

ROOT = Path(__file__).resolve().parents[2]
# As Spark 4.3 writes it.
ENDED = """26/11/22 12:00:00 INFO LoggingPodStatusWatcherImpl: State changed, new state:
\t exit code: 7
26/11/22 12:00:01 INFO LoggingPodStatusWatcherImpl: Container final statuses:

\t container name: report
\t container state: terminated
\t exit code: {}
\t termination reason: Error
"""


def _wait_for(program: str) -> subprocess.Popen[str]:
    """The wrapper around a shell in place of spark-submit."""
    wait = f"submission.wait_for_driver(['sh', '-c', {program!r}], dict(os.environ))"
    words = f"import os, sys; from sla_reports import pod_entrypoint as submission; sys.exit({wait})"
    return subprocess.Popen(
        [sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("says", "ends", "code"),
    [
        (ENDED.format(0), 0, 0),
        (ENDED.format(2), 0, 2),
        (ENDED.format(137), 0, 137),
        # It could not even submit.
        ("", 1, 1),
        # The driver goes on and nobody waits for it: that is no report yet.
        ("26/11/22 12:00:00 INFO Client: Deployed Spark application\n", 0, 1),
    ],
)
def test_it_ends_as_the_driver_did(says: str, ends: int, code: int) -> None:
    process = _wait_for(f"printf %s {shlex.quote(says)} >&2; exit {ends}")
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.startswith(says)
    assert ("did not tell how the driver ended" in said) is (code == 1 and ends == 0)


def test_a_pod_that_is_told_to_go_tells_spark_submit() -> None:
    process = _wait_for("trap 'echo went >&2; exit 143' TERM; echo here >&2; while :; do sleep 0.05; done")
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "went\n")


def test_only_the_final_states_count() -> None:
    assert exit_codes(ENDED.format(3).splitlines()) == [3]
    assert exit_codes(["\t exit code: 3\n"]) == []


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        (["spark-submit", "--deploy-mode=cluster"], True),
        (["spark-submit", "--deploy-mode", "cluster"], True),
        (["spark-submit", "--deploy-mode", "client", "cluster"], False),
        (["spark-submit"], False),
    ],
)
def test_a_driver_here_becomes_the_process_itself(words: list[str], apart: bool) -> None:
    assert is_apart(words) is apart
