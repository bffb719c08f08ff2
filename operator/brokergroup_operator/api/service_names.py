"""Names of Services as a group's pods mean them: the operator's pods are in another namespace."""

from rocketmq_remoting.address import heard_address, is_ip, join_address, one_spelling


def as_brokers_mean(address: str, namespace: str) -> str:
    """A name without a dot is a Service in the brokers' namespace; from the operator's pod it would be one in its own."""
    found = heard_address(address)
    if found is None or is_ip(found.host) or "." in found.host or found.host == "localhost":
        return one_spelling(address)
    return join_address(f"{found.host}.{namespace}", found.port)
