"""The writes of the client, each by its verb, of one ConfigMap."""

from __future__ import annotations

from brokergroup_operator.kube.resources import CONFIG_MAPS

OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}}

WRITES = {
    "replace": lambda api: api.replace(CONFIG_MAPS, OBJECT),
    "delete": lambda api: api.delete(CONFIG_MAPS, "a", namespace="n"),
    "create": lambda api: api.create(CONFIG_MAPS, OBJECT),
    "patch": lambda api: api.patch(CONFIG_MAPS, "a", {"data": {}}, namespace="n"),
}
