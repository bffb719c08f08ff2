"""Sequences as traces: a failing one is written as a trace, kept under traces/ if it shows a bug of ours, and replayed first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.core.trace_language import read_trace
from tests.differential.language import Step

if TYPE_CHECKING:
    from tests.differential.comparison import Outcome

TRACES = Path(__file__).parent / "traces"


def kept_sequences() -> dict[str, list[Step]]:
    """Return the sequences under traces/, by file name."""
    return {
        path.stem: [Step.parse(block.command) for block in read_trace(path)] for path in sorted(TRACES.glob("*.txt"))
    }


def draw(outcome: Outcome, *, title: str) -> str:
    """Return the sequence in the language of the traces: command, Java's answer, our answer."""
    lines = [f"# {title}", ""]
    for played in outcome.played:
        if played.deviation is not None:
            lines.append(f"# deviates: {played.deviation}")
        lines.append(str(played.step))
        if played.java is not None:
            lines.append(f"java: {played.java.draw()}")
        lines += ["----", played.ours.draw() if played.ours is not None else "-", ""]
    if outcome.difference is not None:
        lines += [f"# {line}" for line in str(outcome.difference).splitlines()]
    if outcome.failure is not None:
        lines.append(f"# {outcome.failure}")
    return "\n".join(lines)
