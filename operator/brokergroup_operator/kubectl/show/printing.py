"""Columns as kubectl prints them, and whole objects as JSON or YAML."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.kubectl.options import Format

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def columns(header: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """Left-aligned, three spaces apart; an empty cell is a dash."""
    table = [list(header)] + [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    return "\n".join(
        indent + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def print_objects(value: Any, output: Format) -> bool:
    """Print it whole if that was asked for; says whether it was."""
    if output is Format.JSON:
        import json

        typer.echo(json.dumps(value, indent=2))
    elif output is Format.YAML:
        typer.echo(as_yaml(value), nl=False)
    return output in (Format.JSON, Format.YAML)


def as_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def as_list(items: list[dict[str, Any]]) -> dict[str, Any]:
    """As `kubectl get -o json` gives several."""
    return {"apiVersion": "v1", "kind": "List", "items": items}


def age(timestamp: str | None) -> str:
    """As kubectl writes an age."""
    if not timestamp:
        return ""
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(timestamp)).total_seconds()
    for unit, name, limit in ((1, "s", 2 * MINUTE), (MINUTE, "m", 3 * HOUR), (HOUR, "h", 2 * DAY)):
        if seconds < limit:
            return f"{max(0, int(seconds // unit))}{name}"
    return f"{int(seconds // DAY)}d"


def aged(text: str) -> str:
    """What an object says with a point in time, since it may not change all the time, said with an age."""
    return re.sub(r"\bsince (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", lambda found: f"for {age(found[1])}", text)


def in_units(value: int | None) -> str | None:
    """1536 -> 1.5 KiB."""
    if value is None:
        return None
    amount = float(value)
    for unit in UNITS:
        if amount < 1024 or unit == UNITS[-1]:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{value} B"
        amount /= 1024
    return None
