"""The frame of every run on the two nodes: they are up, and end as they were found, also after a failure or an interrupt."""

from __future__ import annotations

import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, NoReturn

from rocketmq_remoting.errors import RemotingError
from tests.interop.clients import ClientError
from tests.node import cluster
from tests.node.bench import Bench, CheckError
from tests.node.cluster import say
from tests.node.evidence import RECORDS, keep_control_plane
from tests.node.kubectl import given_up
from tests.node.leftovers import refuse_a_used_cluster
from tests.node.processes import NodeError
from tests.real.parts.steps import PartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What fails a step or a run: it is noted, and what was started is still ended.
ERRORS = (
    CheckError,
    ClientError,
    NodeError,
    PartError,
    AssertionError,
    RemotingError,
    RuntimeError,
    OSError,
    KeyError,
    ValueError,
    subprocess.SubprocessError,
)


def run_on_two_nodes(
    name: str,
    bench: Bench,
    failed: dict[str, str],
    act: Callable[[Path], None],
    *,
    keep: bool = False,
    tidy: Callable[[], None] | None = None,
) -> None:
    """Bring the nodes up, and act with the archive of our image. What ends this early goes into `failed` by the run's name.

    A cluster that was up before, or that is to be kept, stays up. With `tidy` it has to be empty of ours (CheckError), and `tidy`
    makes it so again; without, a run may go on with the groups that are there.
    """
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    kept, is_mine = keep or cluster.is_up(), False
    shutil.rmtree(RECORDS, ignore_errors=True)
    try:
        archive = cluster.up()
        if tidy is not None:
            refuse_a_used_cluster()
            is_mine = True
        act(archive)
    except ERRORS as error:
        if told(error) not in failed.values():  # else a step has noted it
            failed[name] = told(error)
        say(f"FAILED: {error}")
    except KeyboardInterrupt as interrupt:
        failed["interrupted"] = str(interrupt)
    finally:
        # A second interrupt must not leave half of it running.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        bench.close()
        if kept and is_mine and tidy is not None:
            try:
                tidy()
            except ERRORS as error:
                failed["tidy"] = told(error)
        end(bench, kept=kept, failed=failed)


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def interrupted(number: int, _frame: object) -> NoReturn:
    """As by Ctrl-C: what runs is ended by the same way."""
    given_up.set()
    raise KeyboardInterrupt(signal.Signals(number).name)


def end(bench: Bench, *, kept: bool, failed: dict[str, str]) -> None:
    """Down, and nothing of the machine's settings changed: a check too, where the cluster was ours alone."""
    if failed:
        bench.records.copy_to(RECORDS / "operator")
        keep_control_plane(RECORDS / "control-plane")
        say(f"logs, incidents and threads: {RECORDS}")
    if kept:
        return
    left = cluster.down()
    if left:
        failed["machine-as-before"] = "; ".join(left)
        say(f"machine-as-before: FAILED: {failed['machine-as-before']}")
