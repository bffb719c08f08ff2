"""The console script: a pod's replica starts without the libraries of the command line, all else is the command line's."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.brokergroup import BrokerGroupSpec, Implementation
from brokergroup_operator.cli import entry
from brokergroup_operator.reconcile.render.containers import command
from rocketmq_replica import process

if TYPE_CHECKING:
    from pathlib import Path


def started(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Return what the console script starts: a replica's arguments, or the name of the command line."""
    found: list[object] = []
    monkeypatch.setattr(sys, "argv", ["brokergroup", *arguments])
    monkeypatch.setattr(process, "main", lambda path, *, async_learner: found.append((str(path), async_learner)))
    monkeypatch.setattr("brokergroup_operator.cli.main.app", lambda: found.append("command line"))
    with suppress(SystemExit):
        entry.main()
    return found.pop()


@pytest.mark.parametrize("learner", [False, True])
def test_a_pods_command_starts_its_replica(monkeypatch: pytest.MonkeyPatch, *, learner: bool) -> None:
    program, *arguments = command(BrokerGroupSpec(implementation=Implementation.PYTHON), learner=learner)
    assert program == "brokergroup"
    assert started(arguments, monkeypatch) == (arguments[2], learner)


@pytest.mark.parametrize(
    "arguments",
    [[], ["operator"], ["replica"], ["replica", "--config"], ["replica", "--config", "a", "b"], ["replica", "--help"]],
)
def test_all_else_is_the_command_lines(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(arguments, monkeypatch) == "command line"


def test_a_replica_loads_no_library_of_the_command_line(tmp_path: Path) -> None:
    program = (
        "import sys; from brokergroup_operator.cli import entry; from rocketmq_replica import process\n"
        f"sys.argv = ['brokergroup', 'replica', '--config', {str(tmp_path / 'broker.conf')!r}]\n"
        "process.main = lambda path, *, async_learner: 7\n"
        "try: entry.main()\n"
        "except SystemExit as end: print(end.code, *{one.partition('.')[0] for one in sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "7"
    assert not {"typer", "rich", "pydantic", "kopf", "kubernetes", "structlog"} & set(told)
    assert "rocketmq_replica" in told
