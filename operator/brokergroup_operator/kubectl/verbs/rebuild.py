"""`kubectl brokergroup rebuild`: a member's volume is given up, a new member copies the master."""

from brokergroup_operator.kubectl import options


def rebuild(
    group: options.GroupName,
    broker_id: options.Member,
    *,
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
    """Delete a member's volume WITH ITS DATA; a new member with a new broker id copies the master."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    if not dry_run:
        ask_for_the_name(group, f"This deletes the volume of broker {broker_id} with its data", yes=yes, typed=confirm)
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    ask(Cluster(kubeconfig, context, namespace), group, "Rebuild", {"brokerId": broker_id}, asking)
