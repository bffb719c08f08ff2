"""`kubectl brokergroup wake`: the end of a hibernation."""

from brokergroup_operator.kubectl import options


def wake(
    group: options.GroupName,
    *,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Start the pods of a hibernated group again, on their own volumes, with their own broker ids."""
    from brokergroup_operator.kubectl.maintaining import maintain
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    maintain(Cluster(kubeconfig, context, namespace), group, "hibernated", on=False, word="waking")
