"""What can lose data, or take members away, wants the group's name from the person who asks for it."""

from __future__ import annotations

import sys

import typer

from brokergroup_operator.kubectl.errors import NotConfirmedError


def confirm(group: str, what: str, *, yes: bool, typed: str | None) -> None:
    """Raises unless --yes, --confirm GROUP, or the name typed at the prompt."""
    if typed is None and yes:
        return
    if typed is None:
        if not is_terminal():
            raise NotConfirmedError(f"{what}: nobody to ask; expected --confirm {group}")
        typer.echo(f"{what}.", err=True)
        typed = str(typer.prompt(f"Type the name of the group ({group}) to go on", err=True))
    if typed != group:
        raise NotConfirmedError(f"{what}: {typed!r} is not the name of the group, {group!r}; nothing was done")


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()
