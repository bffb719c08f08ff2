"""`kubectl brokergroup pause`: the operator changes nothing of the group but its status; failovers go on."""

from brokergroup_operator.kubectl import options


def pause(
    group: options.GroupName,
    *,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Leave the group's pods, claims and configuration alone until it is resumed. Failovers go on."""
    from brokergroup_operator.kubectl.maintaining import maintain
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    maintain(Cluster(kubeconfig, context, namespace), group, "paused", on=True, word="paused")
