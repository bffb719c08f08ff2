"""`kubectl brokergroup resume`: the end of a pause."""

from brokergroup_operator.kubectl import options


def resume(
    group: options.GroupName,
    *,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """End a pause: what differs from the spec is put right."""
    from brokergroup_operator.kubectl.maintaining import maintain
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    maintain(Cluster(kubeconfig, context, namespace), group, "paused", on=False, word="resumed")
