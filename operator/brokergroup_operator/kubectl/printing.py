"""Columns as kubectl prints them, whole objects as JSON or YAML, and pages that are drawn again after every change."""

from __future__ import annotations

import datetime as dt
import re
import sys
from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.kubectl.command_line import Format, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from brokergroup_operator.kubectl.cluster import Cluster

CLEAR = "\x1b[2J\x1b[H"
# A terminal is drawn anew so often without a change, because ages grow.
REDRAW_SECONDS = 2
# Elsewhere a page follows only a change.
WATCH_SECONDS = 300
MINUTE, HOUR, DAY = 60, 3600, 86_400
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def columns(header: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """Return the rows left-aligned, three spaces apart; an empty cell is a dash."""
    table = [list(header)] + [["-" if value is None or value == "" else str(value) for value in row] for row in rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    return "\n".join(
        indent + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def print_objects(value: Any, output: Format) -> bool:
    """Print the value whole if that was asked for; return whether it was."""
    if output is Format.JSON:
        import json

        typer.echo(json.dumps(value, indent=2))
    elif output is Format.YAML:
        typer.echo(as_yaml(value), nl=False)
    return output.is_whole


def as_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def as_list(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several objects as `kubectl get -o json` prints them."""
    return {"apiVersion": "v1", "kind": "List", "items": items}


def age(timestamp: str | None) -> str:
    """Return the time since, as kubectl prints an age."""
    if not timestamp:
        return ""
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(timestamp)).total_seconds()
    for unit, name, limit in ((1, "s", 2 * MINUTE), (MINUTE, "m", 3 * HOUR), (HOUR, "h", 2 * DAY)):
        if seconds < limit:
            return f"{max(0, int(seconds // unit))}{name}"
    return f"{int(seconds // DAY)}d"


def aged(text: str) -> str:
    """Replace `since <time>` by `for <age>`: objects keep times, because an age would change all the time."""
    return re.sub(r"\bsince (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", lambda found: f"for {age(found[1])}", text)


def in_units(value: int | None) -> str | None:
    """1536 -> 1.5 KiB."""
    if value is None:
        return None
    power = min(max(value.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{value} B" if power == 0 else f"{value / 1024**power:.1f} {UNITS[power]}"


class Screen:
    """Draws a page over the last one on a terminal, after it elsewhere. The same page is not drawn twice."""

    def __init__(self, *, clears: bool) -> None:
        self._clears = clears and sys.stdout.isatty()
        self._shown: str | None = None

    def draw(self, text: str) -> None:
        if text == self._shown:
            return
        if self._clears:
            typer.echo(CLEAR, nl=False)
        elif self._shown is not None:
            typer.echo("---")
        typer.echo(text)
        self._shown = text


def show(cluster: Cluster, group: str, render: Callable[[dict[str, Any]], str], *, watch: bool) -> None:
    """Show one group, once, or after every change until Ctrl-C."""
    screen = Screen(clears=watch)
    for obj in cluster.follow(group):
        if obj is None:
            raise NotFoundError(f"brokergroups {cluster.namespace}/{group}: it was deleted")
        screen.draw(render(obj))
        if not watch:
            return


def show_all(cluster: Cluster, render: Callable[[list[dict[str, Any]]], str], *, everywhere: bool, watch: bool) -> None:
    """Show all groups, once, or after every change until Ctrl-C."""
    screen = Screen(clears=watch)
    if not watch:
        screen.draw(render(cluster.groups(everywhere=everywhere)))
        return
    quiet_seconds = REDRAW_SECONDS if sys.stdout.isatty() else WATCH_SECONDS
    for groups in cluster.follow_all(everywhere=everywhere, quiet_seconds=quiet_seconds):
        screen.draw(render(groups))
