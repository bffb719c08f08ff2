"""The end of a command, and its log: every line, also of libraries, in one format."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from typing import get_args

import pytest
import structlog
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.running import (
    SWITCH_INTERVAL_SECONDS,
    LogFormat,
    LogLevel,
    LogOptions,
    configure_logging,
)

WAITING = """
import asyncio, signal, sys, time
from brokergroup_operator.cli import running
async def run(stop):
    print("up", flush=True)
    await stop.wait()
    print("in good order", flush=True)
"""


def started(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_for_the_end(number: signal.Signals) -> None:
    process = started("running.run_until_signalled(run)")
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "in good order\n"
    assert process.returncode == 0


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    process = started("signal.signal(signal.SIGHUP, signal.SIG_IGN); running.run_until_signalled(run)")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    assert process.communicate(timeout=60)[0] == "in good order\n"


def test_a_thread_that_computes_lets_the_event_loop_run_soon() -> None:
    process = started("running.run_until_signalled(run); print(sys.getswitchinterval())")
    process.terminate()
    assert float(process.communicate(timeout=60)[0].split()[-1]) == pytest.approx(SWITCH_INTERVAL_SECONDS)


COLLECTING = """
import gc, weakref
from brokergroup_operator.cli import running
running.WHOLE_COLLECTION_SECONDS = {whole_seconds}
class Node: pass
def cycles(count):
    nodes = [Node() for _ in range(count)]
    for node in nodes:
        node.itself = node
    return nodes
nodes = cycles(1)
left_out = weakref.ref(nodes[0])
async def run(stop):
    global nodes
    {first}
    print(gc.get_freeze_count() > 1000)
    nodes = cycles({others})
    gc.collect()
    gc.collect()
    print(left_out() is None)
running.run_until_signalled(run)
"""


@pytest.mark.parametrize(
    ("first", "whole_seconds", "others", "freed"),
    [
        ("gc.collect()", 600.0, 1, False),
        ("gc.collect()", 0.0, 1, True),
        ("gc.collect()", 600.0, 100_000, True),
        ("gc.freeze()", 600.0, 1, False),  # as the first list does: the first search stopped it for 0.6 s
    ],
)
def test_what_a_collection_found_alive_waits_for_the_next_whole_one(
    first: str, whole_seconds: float, others: int, freed: bool
) -> None:
    """With a thousand groups a plane stood still for 0.5 s every few seconds. Closed connections must not add up either."""
    program = COLLECTING.format(first=first, whole_seconds=whole_seconds, others=others)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", str(freed)]


def test_the_end_of_standard_input_asks_for_the_end() -> None:
    process = started("running.end_with_standard_input(); running.run_until_signalled(run)")
    assert process.communicate("what it is told is not read\n", timeout=60)[0] == "in good order\n"
    assert process.returncode == 0


def test_a_command_that_does_not_end_with_its_parent_is_killed() -> None:
    process = started(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); running._ORPHAN_SECONDS = 0.2\n"
        "print('up', flush=True); running.end_with_standard_input(); time.sleep(600)"
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)


def write_one_of_each() -> None:
    log, library = structlog.get_logger("ours"), logging.getLogger("kopf")
    for level in LEVELS:
        getattr(log, level)(f"our {level}", group="default/orders", epoch=7)
        getattr(library, level)("their %s", level)


@pytest.mark.parametrize("level", LEVELS)
def test_json_lines_have_level_time_and_values(level: LogLevel, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions(log_level=level, log_format="json"))
    write_one_of_each()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    heard = LEVELS[LEVELS.index(level) :]
    ours = [line for line in lines if line["event"].startswith("our")]
    assert [line["level"] for line in ours] == list(heard)
    assert all((line["group"], line["epoch"]) == ("default/orders", 7) and line["timestamp"] for line in ours)
    libraries = heard if level in ("debug", "error") else ("warning", "error")
    theirs = [line for line in lines if line["event"].startswith("their")]
    assert [(line["level"], line["logger"]) for line in theirs] == [(one, "kopf") for one in libraries]


def test_an_exception_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions(log_level="info", log_format="json"))
    try:
        int("seven\nlines")
    except ValueError:
        structlog.get_logger().exception("broke", what={"odd"})
        logging.getLogger("kopf").exception("broke too")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "ValueError: invalid literal" in ours["exception"]
    assert "ValueError: invalid literal" in theirs["exception"]


@pytest.mark.parametrize("log_format", get_args(LogFormat))
def test_text_without_a_terminal_has_no_colours(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions(log_level="info", log_format=log_format))
    write_one_of_each()
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [["operator", "--controller-address", "a:1"], ["controller"]])
@pytest.mark.parametrize(("flag", "value"), [("--log-level", "loud"), ("--log-format", "xml"), ("--log-level", "")])
def test_a_wrong_value_names_flag_value_and_what_was_expected(command: list[str], flag: str, value: str) -> None:
    done = CliRunner().invoke(app, [*command, flag, value], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert flag in done.output
    assert repr(value) in done.output
    assert ("'warning'" if flag == "--log-level" else "'json'") in done.output
