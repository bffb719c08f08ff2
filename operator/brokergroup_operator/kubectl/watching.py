"""Shows a group again after every change, until Ctrl-C."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.kubectl.errors import NotFoundError
from brokergroup_operator.kubectl.kinds import BROKER_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kubectl.cluster import Cluster

CLEAR = "\x1b[2J\x1b[H"


def show(cluster: Cluster, group: str, render: Callable[[dict[str, Any]], str], *, watch: bool) -> None:
    """Once, or for ever. On a terminal the page is drawn over the last one; elsewhere pages follow each other."""
    shown = None
    for obj in cluster.follow(BROKER_GROUPS, group):
        if obj is None:
            raise NotFoundError(f"brokergroups {cluster.namespace}/{group}: it was deleted")
        text = render(obj)
        if text != shown:
            if sys.stdout.isatty() and watch:
                typer.echo(CLEAR, nl=False)
            elif shown is not None:
                typer.echo("---")
            typer.echo(text)
            shown = text
        if not watch:
            return
