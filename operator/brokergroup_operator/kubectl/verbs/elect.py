"""`kubectl brokergroup elect --unclean --yes-lose-data`: a replica becomes master although it may lack acknowledged messages."""

from typing import Annotated

import typer

from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import UsageError


def elect(
    group: options.GroupName,
    to: Annotated[int, typer.Option("--to", help="Broker id of the next master", min=1)],
    *,
    unclean: Annotated[bool, typer.Option("--unclean", help="It may lack acknowledged messages")] = False,
    yes_lose_data: Annotated[bool, typer.Option("--yes-lose-data", help="They may be lost for good")] = False,
    confirm: options.Confirm = None,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_SECONDS,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Make a replica master that may lack acknowledged messages. There is no --yes: the name must be typed or --confirm given."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    if not (unclean and yes_lose_data):
        raise UsageError(
            "elect: expected --unclean and --yes-lose-data; a clean change of master is kubectl brokergroup switchover"
        )
    if not dry_run:
        ask_for_the_name(group, f"Acknowledged messages that broker {to} lacks are LOST", yes=False, typed=confirm)
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    section = {"toBrokerId": to, "acknowledgeDataLoss": group}
    ask(Cluster(kubeconfig, context, namespace), group, "Elect", section, asking)
