"""Submits a driver of its own pod, waits for it, and ends as it ended: its exit code is the verdict.

In deploy mode `cluster` spark-submit waits for the driver's pod and then ends with 0, however that pod ended: a breached report
would be a Job that succeeded, and a driver that was killed too. But it writes how the containers ended, so it is read here and
passed on. Where it tells nothing, nobody knows whether there is a report, which is a failure.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import IO, Final

_NOT_TOLD: Final = 1
# Of the container statuses that LoggingPodStatusWatcher writes when the driver's pod has ended.
_ENDED: Final = re.compile(r"^\s*exit code: (\d+)\s*$")
_FINAL: Final = "Container final statuses:"


def is_apart(words: Sequence[str]) -> bool:
    """Whether spark-submit is told to run the driver in a pod of its own."""
    return "--deploy-mode=cluster" in words or ("--deploy-mode", "cluster") in pairwise(words)


def wait_for_driver(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run spark-submit; returns its exit code, or the driver's where its own is 0."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as submit:  # noqa: S603 - our own words
        # The first process of a container has no default action for signals, and spark-submit would outlive it elsewhere.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda told, _: submit.send_signal(told))
        assert submit.stderr is not None
        ended = exit_codes(_passed_on(submit.stderr, sys.stderr))
    if submit.returncode != 0:
        # A signal's number is negative here, and 128 more everywhere else.
        return submit.returncode if submit.returncode > 0 else 128 - submit.returncode
    if not ended:
        sys.stderr.write(
            "entry point: spark-submit did not tell how the driver ended; expected"
            " spark.kubernetes.submission.waitAppCompletion to be true\n"
        )
        return _NOT_TOLD
    return max(ended)


def exit_codes(lines: Iterable[str]) -> list[int]:
    """How the containers of the driver's pod ended, from what spark-submit writes."""
    found: list[int] = []
    is_final = False
    for line in lines:
        is_final = is_final or line.rstrip().endswith(_FINAL)
        told = _ENDED.match(line) if is_final else None
        if told is not None:
            found.append(int(told[1]))
    return found


def _passed_on(lines: IO[str], to: IO[str]) -> Iterable[str]:
    for line in lines:
        to.write(line)
        to.flush()
        yield line
