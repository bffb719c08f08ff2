"""Shows a group, or all of them, again after every change, until Ctrl-C."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.kubectl.errors import NotFoundError
from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kubectl.reach.cluster import Cluster

CLEAR = "\x1b[2J\x1b[H"
# A terminal is drawn anew so often without any news: ages go on.
REDRAW_SECONDS = 2
# Elsewhere a page without news is none.
WATCH_SECONDS = 300


class Screen:
    """On a terminal a page is drawn over the last one; elsewhere pages follow each other. The same page is not drawn twice."""

    def __init__(self, *, clears: bool) -> None:
        self._clears = clears and sys.stdout.isatty()
        self._shown: str | None = None

    def draw(self, text: str) -> None:
        """Show this page."""
        if text == self._shown:
            return
        if self._clears:
            typer.echo(CLEAR, nl=False)
        elif self._shown is not None:
            typer.echo("---")
        typer.echo(text)
        self._shown = text


def show(cluster: Cluster, group: str, render: Callable[[dict[str, Any]], str], *, watch: bool) -> None:
    """Show one group, once or for ever."""
    screen = Screen(clears=watch)
    for obj in cluster.follow(BROKER_GROUPS, group):
        if obj is None:
            raise NotFoundError(f"brokergroups {cluster.namespace}/{group}: it was deleted")
        screen.draw(render(obj))
        if not watch:
            return


def show_all(cluster: Cluster, render: Callable[[list[dict[str, Any]]], str], *, everywhere: bool, watch: bool) -> None:
    """Show all groups, once or for ever."""
    screen = Screen(clears=watch)
    if not watch:
        screen.draw(render(cluster.list(BROKER_GROUPS, everywhere=everywhere)))
        return
    quiet_seconds = REDRAW_SECONDS if sys.stdout.isatty() else WATCH_SECONDS
    for groups in cluster.follow_all(BROKER_GROUPS, everywhere=everywhere, quiet_seconds=quiet_seconds):
        screen.draw(render(groups))
