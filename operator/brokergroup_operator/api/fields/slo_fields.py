"""What a BrokerGroup says about its service level objective; the operator does not act on it, the SLA reports and alerts do."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class SloSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The objective that reports and alerts hold the group against (docs/tasks/sla.md). The operator does not act on it."""

    availability_percent: Annotated[
        Annotated[str, Meta(min_length=2, max_length=8, pattern=r"^[1-9][0-9](\.[0-9]{1,5})?$")] | None,
        Meta(
            description='The share of the time in which the group takes writes, in percent and in quotes, as "99.95".'
            " Absent: the group has no objective of its own."
        ),
    ] = None
    window: Annotated[
        # What each of them means is `sla_reports.measures.objectives.BudgetWindow`'s.
        Literal["7d", "28d", "30d", "90d", "1w", "1M", "1Q", "1Y"],
        Meta(
            description="Over which time: 7d, 28d, 30d and 90d are the last days; 1w, 1M, 1Q and 1Y a week, month, quarter or year"
            " of the calendar."
        ),
    ] = "30d"
    time_zone: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            pattern=r"^[A-Za-z0-9_+/-]{1,64}$",
            description="In which a calendar's week, month, quarter or year begins, as Asia/Shanghai.",
        ),
    ] = "UTC"
