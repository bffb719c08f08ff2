"""The shapes of panel that several dashboards have: one definition each, so that the same kind of question looks the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.observe.dashboards.model import BLUE, BY_GROUP, FEW_IS_GOOD, SELECT, Panel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.observe.dashboards.model import Threshold

EACH_GROUP: Final = "{{namespace}}/{{broker_group}}"


def how_many_groups(
    question: str, says: str, *, are: str, thresholds: tuple[Threshold, ...] = FEW_IS_GOOD, none_is_zero: bool = True
) -> Panel:
    """A number on a coloured ground: how many groups an expression with one series for each of them holds."""
    expression = f"count({are})" + (" or vector(0)" if none_is_zero else "")
    return Panel(
        question=question,
        says=says,
        kind="stat",
        width=6,
        height=4,
        thresholds=thresholds,
        queries=((expression, "groups"),),
    )


def of_each_group(
    question: str, says: str, metrics: Mapping[str, str], *, thresholds: tuple[Threshold, ...] = FEW_IS_GOOD
) -> Panel:
    """Lines over time: one for each group and metric. `metrics` are by what the legend calls them; empty: the group alone."""
    return Panel(
        question=question,
        says=says,
        kind="timeseries",
        thresholds=thresholds,
        queries=tuple(
            (f"{BY_GROUP} ({metric}{SELECT})", f"{{{{broker_group}}}} {called}".rstrip())
            for called, metric in metrics.items()
        ),
    )


def ranking(
    question: str,
    says: str,
    expression: str,
    *,
    of: str = EACH_GROUP,
    unit: str = "short",
    thresholds: tuple[Threshold, ...] = ((None, BLUE),),
    width: int = 12,
) -> Panel:
    """Bars beside each other, the longest at once in sight; `of` is what each bar is called."""
    return Panel(
        question=question,
        says=says,
        kind="bargauge",
        unit=unit,
        width=width,
        thresholds=thresholds,
        queries=((expression, of),),
    )
