"""`kubectl brokergroup restart`: pods are made anew one by one, the master's after a switchover."""

from typing import Annotated

import typer

from brokergroup_operator.kubectl import options


def restart(
    group: options.GroupName,
    broker_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[BROKER-ID]...", help="Which members; default: all")
    ] = None,
    *,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_SECONDS,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Restart members one by one: slaves first, the master after a switchover."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    section = {"brokerIds": list(broker_ids)} if broker_ids else {}
    ask(Cluster(kubeconfig, context, namespace), group, "Restart", section, asking)
