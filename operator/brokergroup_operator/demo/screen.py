"""What the demo shows: members and roles, epoch, SyncStateSet, acknowledgements per second, each failover's timeline.

A table that redraws itself on a terminal, elsewhere a line for each change; on standard error, since standard output has only the
JSON at the end.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_ROLE_STYLES = {"master": "bold green", "slave": "cyan"}


@dataclass(frozen=True)
class MemberRow:
    """One member by the group's status."""

    broker_id: int
    pod: str
    address: str
    role: str
    state: str


@dataclass(frozen=True)
class FailoverRow:
    """One failover: its name and the milliseconds from the fault to each step that happened."""

    title: str
    steps_ms: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class DemoView:
    """The content of the screen at one moment."""

    members: Sequence[MemberRow] = ()
    master_epoch: int = 0
    sync_state_set: Sequence[int] = ()
    acknowledged: int = 0
    per_second: float = 0.0
    failovers: Sequence[FailoverRow] = ()
    doing: str = ""


@dataclass
class Screen:
    """A context: draws views while it is open."""

    console: Console = field(default_factory=lambda: Console(stderr=True))
    hints: Sequence[str] = ()
    _live: Live | None = None
    _last_line: str = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal was closed; nothing can be shown any more
                self._live.stop()

    def show(self, view: DemoView) -> None:
        if self._live is not None:
            self._live.update(draw(view, self.hints))
            return
        line = _one_line(view)
        if line != self._last_line:
            self._last_line = line
            self.console.print(f"{line} | {view.per_second:.0f} acks/s", highlight=False, soft_wrap=True)

    def close_with(self, view: DemoView) -> None:
        """Leave the last picture, without hints to a cluster that stops now; without a terminal, print it."""
        if self._live is not None:
            self._live.update(draw(view))
        else:
            self.console.print(draw(view))


def _one_line(view: DemoView) -> str:
    roles = " ".join(f"{member.broker_id}:{member.role}/{member.state}" for member in view.members)
    in_sync = ",".join(str(broker_id) for broker_id in view.sync_state_set)
    return f"{view.doing} | epoch {view.master_epoch} | in sync {{{in_sync}}} | {roles}"


def draw(view: DemoView, hints: Sequence[str] = ()) -> Group:
    """Return the whole picture as one rich renderable."""
    head = Text.assemble(
        ("epoch ", "dim"), (str(view.master_epoch), "bold"),
        ("   SyncStateSet ", "dim"), (str(list(view.sync_state_set)), "bold"),
        ("   acknowledged ", "dim"), (str(view.acknowledged), "bold"),
        ("   per second ", "dim"), (f"{view.per_second:.0f}", "bold"),
    )  # fmt: skip
    parts: list[Text | Table | Panel] = [head, _member_table(view.members)]
    if view.failovers:
        parts.append(_failover_table(view.failovers))
    parts.append(Text(view.doing, style="yellow"))
    if hints:
        parts.append(Panel("\n".join(hints), title="look yourself", style="dim"))
    return Group(*parts)


def _member_table(members: Sequence[MemberRow]) -> Table:
    table = Table("id", "pod", "address", "role", "state", expand=False)
    for member in members:
        style = _ROLE_STYLES.get(member.role, "")
        table.add_row(str(member.broker_id), member.pod, member.address, Text(member.role, style=style), member.state)
    return table


def _failover_table(failovers: Sequence[FailoverRow]) -> Table:
    table = Table("failover", "milliseconds after the fault", expand=False)
    for failover in failovers:
        table.add_row(failover.title, "  ".join(f"{name} {value:.0f}" for name, value in failover.steps_ms))
    return table
