"""Durations on the command line: kubectl takes `--timeout 100s`, and so do we."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from brokergroup_operator.kubectl.command_line import seconds, whole_seconds

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100s", 100), ("1m30s", 90), ("1.5h", 5400), ("500ms", 0.5), ("100", 100), ("0.1", 0.1), ("0", 0), ("0s", 0),
        (600.0, 600), (".5m", 30), ("1h0m5s", 3605), ("7us", 7e-6), ("7µs", 7e-6),
    ],
)  # fmt: skip
def test_go_durations_and_plain_seconds(text: str | float, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "1d", "5S", "s", "1m30", "1e3", "nan", "inf", "٣s"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"expected a duration like 100s, 1m30s or 1\.5h, or seconds like 100"):
        seconds(text)


@pytest.mark.parametrize("text", ["0", "1.5s", "2h", "500ms"])
def test_a_deadline_is_whole_seconds(text: str) -> None:
    assert whole_seconds("2m") == 120
    with pytest.raises(typer.BadParameter, match="expected whole seconds, 1s to 1h"):
        whole_seconds(text)


@pytest.mark.parametrize(
    "arguments", [("--timeout", "100s"), ("--timeout", "1m30s", "--deadline", "2m"), ("--timeout", "5")]
)
def test_the_verbs_take_them(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.create_group()
    assert "created" in bench.must("switchover", "orders", *arguments)


def test_a_verb_names_the_option_and_the_value(bench: Bench) -> None:
    said = bench.run("restart", "orders", "--wait", "--timeout", "soon")
    assert said.code == 2
    assert "--timeout" in said.err
    assert "'soon': expected a duration like 100s" in said.err
