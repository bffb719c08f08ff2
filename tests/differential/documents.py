"""Write docs/reference/deviations.md from the list: `python -m tests.differential.documents` (`--check`: fail if it is stale)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.differential.deviation_list import BY_THE_COMPARISON, DEVIATIONS
from tests.differential.deviations import After
from tests.differential.shapes import SHAPES

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reference" / "deviations.md"
HEAD = """# Deviations from RocketMQ's own controller

Generated from the list in `tests/differential/` by `python -m tests.differential.documents`; do not edit it by hand.

`make test-differential` sends the same generated and recorded sequences of requests to real Java controllers (5.5.1, 5.5.0, 5.3.3)
and to ours, and compares code, remark, extFields and body of every answer, and the group after every write. A
difference that is not on this list fails it; so does an entry that never occurs. Each entry is a predicate on the request, the
state before it, and the answers and states of *both* after it (`tests/differential/deviations_of_*.py`).

"Rule n" is safety rule n of [the architecture](../concepts/architecture.md); "issue n" is apache/rocketmq's.
"""
DECISIONS = """
## Decisions

Differences in code or in the group's state. *After it*: whether the comparison of a sequence goes on.
"""
SPELLINGS = """
## Spellings

The same answer in another form. Both are converted to one form, and must then be equal.
"""
SPECIAL = """
## By the clock, or by more than one request

A comparison by requests cannot show these; each has a test of its own.
"""
AFTER = {After.GO_ON: "equal", After.SHIFT: "equal but for the epochs", After.END: "ends"}


def render() -> str:
    """Return the whole page."""
    compared = [one for one in (*DEVIATIONS, *BY_THE_COMPARISON) if not one.special]
    special = [one for one in DEVIATIONS if one.special]
    lines = [HEAD, DECISIONS, *_heading("name", "request", "Java", "ours", "why", "test", "after it")]
    lines += [
        _row(f"`{one.name}`", one.request, one.java, one.ours, one.why, f"`{one.test}`", AFTER[one.after])
        for one in compared
    ]
    lines += [SPELLINGS, *_heading("name", "request", "Java", "ours", "why")]
    lines += [_row(f"`{one.name}`", one.request, one.java, one.ours, one.why) for one in SHAPES]
    lines += [SPECIAL, *_heading("name", "request", "Java", "ours", "why", "test")]
    lines += [_row(f"`{one.name}`", one.request, one.java, one.ours, one.why, f"`{one.test}`") for one in special]
    return "\n".join(lines) + "\n"


def _heading(*cells: str) -> tuple[str, str]:
    return _row(*cells), "|" + "---|" * len(cells)


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(one) for one in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    text = render()
    if "--check" in arguments:
        same = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        print(f"{TARGET.name} is {'as the list says' if same else 'not what the list says: run it without --check'}")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
