"""`kubectl brokergroup drill`: a failover is rehearsed and measured."""

from typing import Annotated

import typer

from brokergroup_operator.kubectl import options


def drill(
    group: options.GroupName,
    *,
    kill_master: Annotated[
        bool,
        typer.Option("--kill-master", help="Delete the master's pod without grace, instead of a planned switchover"),
    ] = False,
    yes: options.Yes = False,
    confirm: options.Confirm = None,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_SECONDS,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Rehearse a failover: the master moves away and back, or (--kill-master) is killed. Says how long writes stood still."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    if kill_master and not dry_run:
        ask_for_the_name(
            group, "This kills the master: writes stand still until another is elected", yes=yes, typed=confirm
        )
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    section = {"kind": "KillMaster" if kill_master else "Switchover"}
    ask(Cluster(kubeconfig, context, namespace), group, "Drill", section, asking)
