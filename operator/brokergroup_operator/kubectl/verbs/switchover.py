"""`kubectl brokergroup switchover`: another member becomes master, planned, without loss."""

import datetime as dt
import re
from typing import Annotated

import typer

from brokergroup_operator.api.moments import MomentError, told
from brokergroup_operator.api.moments import moment as written
from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.durations import whole_seconds
from brokergroup_operator.kubectl.errors import UsageError

RELATIVE = re.compile(r"\+([0-9]+)([smh])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def switchover(
    group: options.GroupName,
    to: Annotated[
        int | None, typer.Option("--to", help="Broker id of the next master; default: the best", min=1)
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Not before: RFC 3339 (2030-01-02T03:04:05Z) or +30s, +10m, +2h")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Not begun after: as --at. Default: as long after --at as --deadline says"),
    ] = None,
    deadline: Annotated[
        int,
        typer.Option(
            "--deadline", parser=whole_seconds, metavar="DURATION", help="How long it may take: 1s to 1h, or seconds"
        ),
    ] = 60,
    *,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_SECONDS,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Make another member master. Refused while the group is not FailoverSafe."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    section: dict[str, object] = {"deadlineSeconds": deadline}
    if to is not None:
        section["toBrokerId"] = to
    section |= window(at, until, now=dt.datetime.now(dt.UTC))
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    ask(Cluster(kubeconfig, context, namespace), group, "Switchover", section, asking)


def window(at: str | None, until: str | None, *, now: dt.datetime) -> dict[str, str]:
    """The fields notBefore and notAfter; a time that has passed, or an end that is not after the beginning, is a usage error."""
    begins = None if at is None else moment("--at", at, now)
    ends = None if until is None else moment("--until", until, now)
    if begins is not None and ends is not None and ends <= begins:
        raise UsageError(f"--until {until!r} is {told(ends)}: expected a time after --at, {told(begins)}")
    fields = {"notBefore": begins, "notAfter": ends}
    return {field: told(then) for field, then in fields.items() if then is not None}


def moment(option: str, text: str, now: dt.datetime) -> dt.datetime:
    """A time to come; without an offset it would be anybody's guess, so it needs one."""
    then = _relative(option, text, now)
    if then is None:
        try:
            then = written(text)
        except MomentError as error:
            raise UsageError(f"{option} {error}, or +30s, +10m, +2h") from error
    if then < now:
        raise UsageError(
            f"{option} {text!r} is in the past: it is {told(now)}; expected a time to come, or +30s, +10m, +2h"
        )
    return then


def _relative(option: str, text: str, now: dt.datetime) -> dt.datetime | None:
    relative = RELATIVE.fullmatch(text)
    if relative is None:
        return None
    try:
        return now + dt.timedelta(seconds=int(relative[1]) * UNIT_SECONDS[relative[2]])
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{option} {text[:40]!r}: expected a time before the year 10000") from error
