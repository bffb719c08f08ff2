"""Whatever pods and Services an API server could store, members' Services are decided on, and are Services that can be."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.plan import ApplyObject
from brokergroup_operator.reconcile.render.addressing import address_is_lost, service_actions
from brokergroup_operator.reconcile.see.members import membership
from tests.reconcile import builders as b
from tests.reconcile.test_former_ports import JAVA, LOAD_BALANCER, NODE_PORT, SERVICE_IP
from tests.support.draws import examples

SETTLED = {wish["addressing"]: b.settled(network=wish, **JAVA) for wish in (SERVICE_IP, NODE_PORT, LOAD_BALANCER)}
# A few of each, so that they meet.
NUMBERS = st.sampled_from([80, 10909, 10911, 10912, 10913, 30099, *range(30100, 30116), 31007])
PORT_NAMES = st.sampled_from(["broker", "fast", "ha", "fence", "metrics", "former-broker", "former-ha", "mine"])
PROTOCOLS = st.sampled_from(["TCP", "UDP", "SCTP"])
HOSTS = st.sampled_from(["", "10.96.0.2", "203.0.113.2", "lb.example.org", "None", "fd00::2"])
ADDRESSES = st.one_of(
    st.builds("{}:{}".format, HOSTS, NUMBERS),
    st.sampled_from([None, "", ":", ":abc", "host", ":-1", ":²", ":1e3", "30107", f":{'9' * 5000}", "a:b:c"]),
)


def with_some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


CONTAINER_PORTS = st.lists(
    st.tuples(st.fixed_dictionaries({"containerPort": NUMBERS}), with_some(name=PORT_NAMES, protocol=PROTOCOLS)).map(
        lambda pair: pair[0] | pair[1]
    ),
    max_size=5,
    unique_by=lambda port: port.get("name", ""),
)
CONTAINERS = st.lists(
    st.tuples(st.sampled_from(["broker", "fence", "mine"]), with_some(ports=st.one_of(st.none(), CONTAINER_PORTS))).map(
        lambda pair: {"name": pair[0]} | pair[1]
    ),
    min_size=1,
    unique_by=lambda container: container["name"],
)
SERVICE_PORTS = st.lists(
    st.tuples(
        st.fixed_dictionaries({"port": NUMBERS, "protocol": PROTOCOLS}), with_some(name=PORT_NAMES, nodePort=NUMBERS)
    ).map(lambda pair: pair[0] | pair[1]),
    max_size=8,
    unique_by=(
        lambda port: (port["port"], port["protocol"]),
        lambda port: port.get("name", object()),
        lambda port: (port.get("nodePort", object()), port["protocol"]),
    ),
)
KINDS = st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])
SPECS = st.tuples(st.fixed_dictionaries({"type": KINDS}), with_some(clusterIP=HOSTS, ports=SERVICE_PORTS)).map(
    lambda pair: pair[0] | pair[1]
)
INGRESSES = st.lists(st.sampled_from([{}, {"ip": "203.0.113.2"}, {"hostname": "lb.example.org"}]), max_size=2)
STATUSES = st.sampled_from([{}, {"loadBalancer": {}}, {"loadBalancer": None}]) | st.builds(
    lambda given: {"loadBalancer": {"ingress": given}}, INGRESSES
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(
    wish=st.sampled_from(list(SETTLED)),
    address=ADDRESSES,
    containers=CONTAINERS,
    spec=SPECS,
    status=STATUSES,
)
def test_services_are_decided_on(
    wish: str,
    address: str | None,
    containers: list[dict[str, Any]],
    spec: dict[str, Any],
    status: dict[str, Any],
) -> None:
    seen = SETTLED[wish]
    pod = seen.pods["orders-2"]
    given_address = {names.ANNOTATION_ADDRESS: address} if address is not None else {}
    metadata = pod["metadata"] | {"annotations": pod["metadata"]["annotations"] | given_address}
    pod = pod | {"metadata": metadata, "spec": pod["spec"] | {"containers": containers}}
    labels = {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY, names.LABEL_BROKER_GROUP: "orders"}
    there = {"metadata": {"name": "orders-2", "uid": "u", "labels": labels}, "spec": spec, "status": status}
    looked_at = b.changed(seen, pods={**seen.pods, "orders-2": pod}, services={**seen.services, "orders-2": there})
    assert address_is_lost(looked_at, b.member(2)) in {True, False}
    actions = service_actions(looked_at, membership(looked_at))
    applied = b.by_name(*(action.object for action in actions if isinstance(action, ApplyObject)))
    held = {port.get("nodePort") for port in spec.get("ports") or []}
    for name, service in applied.items():
        can_be(service, held if name == "orders-2" else set())


def can_be(service: dict[str, Any], held: set[int]) -> None:
    """By the rules of ValidateService in k8s.io/kubernetes/pkg/apis/core/validation, and no node port of somebody else's."""
    ports = service["spec"]["ports"]
    assert ports
    for key in (("name",), ("port", "protocol"), ("nodePort", "protocol")):
        found = [tuple(port[field] for field in key) for port in ports if key[0] in port]
        assert len(set(found)) == len(found), key
    given_ports = {port["nodePort"] for port in ports if "nodePort" in port}
    assert not given_ports or service["spec"]["type"] != "ClusterIP"
    assert ("externalTrafficPolicy" in service["spec"]) <= (service["spec"]["type"] == "NodePort")
    assert given_ports <= held | set(range(30100, 30180))
