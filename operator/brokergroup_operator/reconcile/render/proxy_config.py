"""Renders rmq-proxy.json: of a cluster's proxies, and of the Proxy in a broker's process. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.proxy_fields import GRPC_PORT, REMOTING_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec

# How often a Proxy asks where the masters are: its own default makes a failover last 20 s longer for its clients.
ROUTE_CACHE_SECONDS: Final = 2
LOCAL_DEFAULTS: Final = {
    # Only clients read routes here, each every 30 s: one that is refreshed but not expired would be as old as the read before.
    "topicRouteServiceCacheExpiredSeconds": ROUTE_CACHE_SECONDS,
    # How long a Proxy that ends waits for its clients' streams, which never end; its broker is down by then.
    "grpcShutdownTimeSeconds": 3,
}


def cluster_mode(config: Mapping[str, str], *, broker_cluster_name: str, name_servers: Sequence[str]) -> str:
    """Of proxies that are processes of their own."""
    return _rendered({}, config, "CLUSTER", broker_cluster_name, name_servers)


def local_mode(spec: BrokerGroupSpec) -> str:
    """One text for all members of the group; empty where their brokers run no Proxy."""
    if spec.local_proxy is None:
        return ""
    return _rendered(LOCAL_DEFAULTS, spec.local_proxy.config, "LOCAL", spec.broker_cluster_name, spec.name_servers)


def still_read(config_map: JsonObject | None, pods: Iterable[JsonObject]) -> str:
    """Return the stored rmq-proxy.json while a pod starts with it; the empty text if none does.

    A pod that was made while the spec had a Proxy: its container may restart, and read the file again, before its pod is replaced.
    """
    return stored_in(config_map) if config_map is not None and any(map(_reads_it, pods)) else ""


def stored_in(config_map: JsonObject) -> str:
    """Return the rmq-proxy.json of a group's ConfigMap; the empty text if it has none."""
    return str((config_map.get("data") or {}).get(names.PROXY_CONFIG_FILE, ""))


def _reads_it(pod: JsonObject) -> bool:
    words = (word for container in pod["spec"]["containers"] for word in container.get("command") or [])
    return any(names.PROXY_CONFIG_FILE in word for word in words)


def _rendered(
    defaults: Mapping[str, int],
    config: Mapping[str, str],
    mode: str,
    broker_cluster_name: str,
    name_servers: Sequence[str],
) -> str:
    """The file's text. What the operator decides overrides `config`, and `config` overrides the defaults."""
    settings = {
        "topicRouteServiceCacheRefreshSeconds": ROUTE_CACHE_SECONDS,
        **defaults,
        **{key: _json_value(value) for key, value in config.items()},
        "proxyMode": mode,
        "rocketMQClusterName": broker_cluster_name,
        "namesrvAddr": ";".join(name_servers),
        "grpcServerPort": GRPC_PORT,
        "remotingListenPort": REMOTING_PORT,
    }
    return json.dumps(settings, indent=1, sort_keys=True) + "\n"


def _json_value(text: str) -> int | bool | str:
    """A Proxy takes no "20" where it expects a number."""
    if text in {"true", "false"}:
        return text == "true"
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() else text
