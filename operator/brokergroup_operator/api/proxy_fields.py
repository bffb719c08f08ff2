"""RocketMQ's Proxy in fields: BrokerGroup.spec.localProxy, and what it shares with a cluster's proxies."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds, names
from brokergroup_operator.api.rules import Rule, validations

# The same at every Proxy: one in local mode sends clients to the other brokers at its own gRPC port.
GRPC_PORT: Final = 8081
REMOTING_PORT: Final = 8080
PROXY_PORTS: Final = {names.PORT_PROXY_GRPC: GRPC_PORT, names.PORT_PROXY_REMOTING: REMOTING_PORT}
# Keys of rmq-proxy.json that the operator writes itself.
RESERVED_PROXY_KEYS: Final = ("proxyMode", "rocketMQClusterName", "namesrvAddr", "grpcServerPort", "remotingListenPort")
# In local mode the command names broker.conf.
RESERVED_LOCAL_KEYS: Final = (*RESERVED_PROXY_KEYS, "brokerConfigPath")
# What switches an ACL on: the broker's key, and the Proxy's. The broker checks no request of a Proxy in its own process, and that
# one reads no broker.conf. `aclEnable` is RocketMQ's up to 5.2.
ACL_KEYS: Final = {
    "authenticationEnabled": "authenticationEnabled",
    "authorizationEnabled": "authorizationEnabled",
    "aclEnable": "enableACL",
}


def config_meta(field: str, reserved: tuple[str, ...]) -> Meta:
    """Return the Meta of a field with further keys of rmq-proxy.json."""
    return Meta(
        max_length=bounds.MAX_CONFIG_ENTRIES,
        description="Further keys of rmq-proxy.json, each value in quotes; a number, true or false is written without"
        " them. A key that the operator sets is rejected.",
        extra_json_schema=validations(
            *(Rule(f"!('{key}' in self)", f"{field}.{key} is set by the operator") for key in reserved)
        ),
    )


def acl_complaint(config: Mapping[str, str], proxy: Mapping[str, str]) -> str:
    """Return which key of the broker's ACL the Proxy lacks, or the empty text: what CEL checks of spec.config alone."""
    # Java takes "True" for true.
    switched_on = [ours for ours in ACL_KEYS if config.get(ours, "").lower() == "true"]
    return next((_acl_message(ours) for ours in switched_on if proxy.get(ACL_KEYS[ours]) != "true"), "")


def _acl_message(key: str) -> str:
    return (
        f"config.{key} 'true' needs localProxy.config.{ACL_KEYS[key]} 'true', and there the ACL's further keys: without them"
        " clients without credentials send and receive through the Proxy (docs/concepts/security.md)"
    )


class LocalProxySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """RocketMQ's Proxy in local mode: it runs in the process of each broker."""

    config: Annotated[dict[str, bounds.ConfigValue], config_meta("localProxy.config", RESERVED_LOCAL_KEYS)] = {}

    # Of the BrokerGroup's spec.
    RULES_OF_GROUP: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.localProxy) || self.implementation == 'Java'",
            "localProxy needs implementation Java: RocketMQ's Proxy runs in the process of a Java broker",
            field_path=".localProxy",
        ),
        Rule(
            "!has(self.localProxy) || self.network.addressing != 'NodePort'",
            f"localProxy contradicts network.addressing NodePort: a Proxy sends its clients to port {GRPC_PORT} of a broker's"
            " address, and a node has no such node port. For clients outside the cluster take LoadBalancer or HostNetwork",
            field_path=".localProxy",
        ),
        Rule(
            f"!has(self.localProxy) || ![{REMOTING_PORT}, {GRPC_PORT}].exists(port, port in [self.network.listenPort - 2,"
            " self.network.listenPort, self.network.haPort])",
            f"with localProxy the ports {REMOTING_PORT} and {GRPC_PORT} are the Proxy's: give network.haPort and"
            " network.listenPort, with the fast port two below it, other ones",
            field_path=".localProxy",
        ),
        Rule(
            f"!has(self.localProxy) || !self.monitoring.exporter || !(self.monitoring.port in [{REMOTING_PORT}, {GRPC_PORT}])",
            f"with localProxy the ports {REMOTING_PORT} and {GRPC_PORT} are the Proxy's: give monitoring.port another one",
            field_path=".monitoring.port",
        ),
        *(
            Rule(
                f"!has(self.localProxy) || !('{ours}' in self.config) || !self.config['{ours}'].matches('^[Tt][Rr][Uu][Ee]$')"
                f" || ('{its}' in self.localProxy.config && self.localProxy.config['{its}'] == 'true')",
                _acl_message(ours),
                field_path=".localProxy",
            )
            for ours, its in ACL_KEYS.items()
        ),
    )
