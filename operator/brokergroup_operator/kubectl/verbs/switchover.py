"""`kubectl brokergroup switchover`: another member becomes master, planned, without loss."""

import datetime as dt
import re
from typing import Annotated

import typer

from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.durations import whole_seconds
from brokergroup_operator.kubectl.errors import UsageError

RELATIVE = re.compile(r"^\+(\d+)([smh])$")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def switchover(
    group: options.GroupName,
    to: Annotated[
        int | None, typer.Option("--to", help="Broker id of the next master; default: the best", min=1)
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Not before: RFC 3339 (2030-01-02T03:04:05Z) or +30s, +10m, +2h")
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
    if at is not None:
        section["notBefore"] = moment(at, dt.datetime.now(dt.UTC))
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    ask(Cluster(kubeconfig, context, namespace), group, "Switchover", section, asking)


def moment(text: str, now: dt.datetime) -> str:
    """A time as the API wants it; without an offset it would be anybody's guess, so it needs one."""
    if relative := RELATIVE.match(text):
        then = now + dt.timedelta(seconds=int(relative[1]) * UNIT_SECONDS[relative[2]])
    else:
        then = _absolute(text)
    return then.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _absolute(text: str) -> dt.datetime:
    try:
        then = dt.datetime.fromisoformat(text)
    except ValueError:
        then = dt.datetime.min
    if then.tzinfo is None:
        raise UsageError(f"--at {text!r}: expected RFC 3339 with an offset (2030-01-02T03:04:05Z) or +30s, +10m, +2h")
    return then
