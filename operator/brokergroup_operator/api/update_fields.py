"""spec.updateStrategy of a BrokerGroup: how pods are replaced, and when (docs/adr/0024-update-windows.md)."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.rules import meta_of_time_zone

MAX_WINDOWS = 8
LONGEST_WINDOW_MINUTES = 24 * 60


class UpdateType(StrEnum):
    """Whether the operator replaces a pod that runs something else than the spec says, or a user does."""

    ROLLING = "Rolling"
    ON_DELETE = "OnDelete"


class MasterUpdate(StrEnum):
    """How the master's turn is taken in a rolling update."""

    SWITCHOVER = "Switchover"
    RESTART = "Restart"
    SUPERVISED = "Supervised"


# In the order of `datetime.date.weekday`.
class Weekday(StrEnum):
    """A day of the week."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


class UpdateWindow(Struct, frozen=True, rename="camel", kw_only=True):
    """Hours of each week in which updates may run."""

    days: Annotated[
        list[Weekday],
        Meta(
            max_length=len(Weekday),
            description="Days on which the window opens; it may end on the next one. Empty: every day.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    start: Annotated[
        str,
        Meta(
            min_length=5,
            max_length=5,
            pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$",
            description="Time of day at which the window opens, in quotes: '02:00'. On the day on which the clocks skip that time,"
            " the window opens as much later as they skip; if that time comes twice, it opens at the first.",
        ),
    ]
    duration_minutes: Annotated[
        int,
        Meta(
            ge=1,
            le=LONGEST_WINDOW_MINUTES,
            description="Minutes for which the window is open, also where the clocks change meanwhile.",
        ),
    ]
    time_zone: Annotated[
        str,
        meta_of_time_zone("Time zone of days and start, such as Europe/Berlin."),
    ] = "UTC"


class UpdateStrategySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How a change of the spec is rolled out: one member at a time, each step when FailoverSafe is True."""

    type: Annotated[
        UpdateType,
        Meta(
            description="Rolling: the operator replaces the pods, slaves first, each in sync again before the next, the"
            " master last. OnDelete: a pod changes once a user deletes it."
        ),
    ] = UpdateType.ROLLING
    master_update: Annotated[
        MasterUpdate,
        Meta(
            description="How the rolling update treats the master's pod. Switchover: another member becomes master first,"
            " then the pod restarts. Restart: it restarts as master, and no write is acknowledged until it is"
            " back. Supervised: the update waits until a user has switched over (kubectl brokergroup switchover)."
        ),
    ] = MasterUpdate.SWITCHOVER
    windows: Annotated[
        list[UpdateWindow],
        Meta(
            max_length=MAX_WINDOWS,
            description="Times in which the operator by itself replaces pods that work, and moves the master to"
            " preferredMaster or off priority 0; at other times it does neither. An update that is not done when the window"
            " closes goes on in the next one (UpToDate, reason OutsideWindow, says when). Failovers, repairs, drained nodes,"
            " changed replicas and operations do not wait: kubectl brokergroup restart updates at once. Empty: any time"
            " (docs/concepts/life.md).",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
