"""What stays on the terminal when a demo ends: nothing that leads to a cluster which is gone."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from brokergroup_operator.demo.screen import DemoView, Screen

HINTS = ["kubectl get brokergroups"]


def shown(renderable: object) -> str:
    text = StringIO()
    Console(file=text, width=100).print(renderable)
    return text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_picture_does_not_say_look_yourself(*, terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with Screen(console=console, hints=HINTS) as screen:
        screen.show(DemoView(doing="kills the master"))
        if terminal:
            assert screen._live is not None
            assert HINTS[0] in shown(screen._live.renderable)
        screen.close_with(DemoView(doing="all read back"))
        last = text.getvalue() if screen._live is None else shown(screen._live.renderable)
    assert "all read back" in last
    assert "look yourself" not in last
    assert HINTS[0] not in last
