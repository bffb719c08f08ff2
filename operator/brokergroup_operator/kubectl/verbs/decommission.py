"""`kubectl brokergroup decommission`: a member leaves for good."""

from brokergroup_operator.kubectl import options


def decommission(
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
    """Remove a member for good. Where spec.replicas still wants it, a new one takes its place."""
    from brokergroup_operator.kubectl.asking import Asking, ask
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    if not dry_run:
        ask_for_the_name(group, f"This removes broker {broker_id} for good", yes=yes, typed=confirm)
    asking = Asking(dry_run=dry_run, wait=wait, timeout_seconds=timeout, output=output)
    ask(Cluster(kubeconfig, context, namespace), group, "Decommission", {"brokerId": broker_id}, asking)
