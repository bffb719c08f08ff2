"""Renders rmq-proxy.json: of a cluster's proxies, and of the Proxy in a broker's process. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.proxy_fields import GRPC_PORT, REMOTING_PORT
from brokergroup_operator.reconcile.render.tls import proxy_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec

# How often a Proxy asks where the masters are: its own default makes a failover last 20 s longer for its clients.
ROUTE_CACHE_SECONDS: Final = 2
# By which name a broker's process may read it (`local_file`).
_FILES: Final = (names.PROXY_CONFIG_FILE, names.PROXY_TLS_CONFIG_FILE)
LOCAL_DEFAULTS: Final = {
    # Only clients read routes here, each every 30 s: one that is refreshed but not expired would be as old as the read before.
    "topicRouteServiceCacheExpiredSeconds": ROUTE_CACHE_SECONDS,
    # How long a Proxy that ends waits for its clients' streams, which never end; its broker is down by then.
    "grpcShutdownTimeSeconds": 3,
}


def cluster_mode(
    config: Mapping[str, str], *, broker_cluster_name: str, name_servers: Sequence[str], with_tls: bool
) -> str:
    """Of proxies that are processes of their own."""
    return _rendered({}, config, "CLUSTER", broker_cluster_name, name_servers, with_tls)


def local_mode(spec: BrokerGroupSpec) -> str:
    """One text for all members of the group; empty where their brokers run no Proxy."""
    if spec.local_proxy is None:
        return ""
    config, with_tls = spec.local_proxy.config, spec.tls is not None
    return _rendered(LOCAL_DEFAULTS, config, "LOCAL", spec.broker_cluster_name, spec.name_servers, with_tls)


def local_file(spec: BrokerGroupSpec) -> str:
    """Return the name of `local_mode`'s file in the group's ConfigMap."""
    return names.PROXY_CONFIG_FILE if spec.tls is None else names.PROXY_TLS_CONFIG_FILE


def still_read(config_map: JsonObject | None, pods: Iterable[JsonObject]) -> dict[str, str]:
    """Return the stored files, by name, with which a pod starts its Proxy.

    A pod that was made while the spec had a Proxy, or had it without TLS: its container may restart, and read the file again,
    before its pod is replaced.
    """
    read = {name for pod in pods for name in _FILES if _reads(pod, name)}
    return {name: text for name in sorted(read) if config_map is not None and (text := stored_in(config_map, name))}


def stored_in(config_map: JsonObject, name: str) -> str:
    """Return this file of a group's ConfigMap; the empty text if it has none."""
    return str((config_map.get("data") or {}).get(name, ""))


def _reads(pod: JsonObject, name: str) -> bool:
    words = (word for container in pod["spec"]["containers"] for word in container.get("command") or [])
    return any(name in word for word in words)


def _rendered(
    defaults: Mapping[str, int],
    config: Mapping[str, str],
    mode: str,
    broker_cluster_name: str,
    name_servers: Sequence[str],
    with_tls: bool,
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
        **proxy_settings(with_tls=with_tls),
    }
    return json.dumps(settings, indent=1, sort_keys=True) + "\n"


def _json_value(text: str) -> int | bool | str:
    """A Proxy takes no "20" where it expects a number."""
    if text in {"true", "false"}:
        return text == "true"
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() else text
