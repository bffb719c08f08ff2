"""Prints what becomes of a change of master whose operator is killed at any of its writes: the rows of test_operator_killed.py.

    python -m tests.controller.killed_table

A row is a kind of change and the number of its write; a column is where the kill strikes: before the write, after it with its
answer lost, after its answer. A cell has what the next process found in the record, and the end. What a process that finds a
change does next, effect by effect, is tests/core/traces/change_taken_over.txt. The exit code is pytest's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent / "test_operator_killed.py"
COLUMNS = ("before", "unanswered", "after")


class Table:
    """A pytest plugin that collects one cell a test."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, int], dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said: dict[str, Any] = dict(report.user_properties)
        if report.when != "call" or "row" not in said:
            return
        name, write, how = said["row"]
        verdict = "" if report.passed else "FAILED: "
        self.cells.setdefault((name, write), {})[how] = f"{verdict}{said['found']} → {said.get('end', 'no end')}"

    def lines(self) -> list[str]:
        """The table in Markdown."""
        head = ["| change | write | killed before it | its answer lost | killed after it |", "|---|---|---|---|---|"]
        rows = [
            f"| {name} | {write} | " + " | ".join(cells.get(how, "not run") for how in COLUMNS) + " |"
            for (name, write), cells in self.cells.items()
        ]
        return head + rows


def main() -> int:
    table = Table()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(TESTS)], plugins=[table])
    print("\n".join(table.lines()))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
