"""`kubectl brokergroup hibernate`: all pods are stopped in good order; claims and record stay."""

from brokergroup_operator.kubectl import options


def hibernate(
    group: options.GroupName,
    *,
    yes: options.Yes = False,
    confirm: options.Confirm = None,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Stop all pods of the group; its data stays. Nothing can be sent or consumed until it is woken."""
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.maintaining import maintain
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    ask_for_the_name(
        group, "This stops every pod of the group: it serves nobody until it is woken", yes=yes, typed=confirm
    )
    maintain(Cluster(kubeconfig, context, namespace), group, "hibernated", on=True, word="hibernating")
