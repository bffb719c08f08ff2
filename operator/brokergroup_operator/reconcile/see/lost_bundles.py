"""Finds a bundle of authorities again whose copy was deleted, in the copies of other groups and clusters of the namespace.

The name of a bundle's file is a hash of its text, and a pod's command has that name. So a text that gives the name is what the pod
was made to trust: with it no authority is added, and none is dropped that a running part needs. Where the copy comes from proves
nothing, and need not: ConfigMaps of a namespace are written by the same people as the lost one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_steps import trust_file
from brokergroup_operator.kube.resources import CONFIG_MAPS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_steps import Made
    from brokergroup_operator.kube.client import KubernetesApi

log = structlog.get_logger(__name__)
# Of each group, and of what else a cluster is made of.
_LABELS = (names.LABEL_BROKER_GROUP, names.LABEL_ROCKETMQ_CLUSTER)


async def with_lost(
    api: KubernetesApi, namespace: str, stored: JsonObject | None, made: Sequence[Made], wanted: str
) -> JsonObject | None:
    """Return the ConfigMap of bundles with those that parts read and it lacks, as far as another ConfigMap has them.

    `wanted`: the bundle that the spec names, which is copied from there.
    """
    data = (stored or {}).get("data") or {}
    lost = {one.trusts for one in made} - data.keys() - {"", trust_file(wanted)}
    found = await _found(api, namespace, lost) if lost else {}
    return (stored or {}) | {"data": {**data, **found}} if found else stored


async def _found(api: KubernetesApi, namespace: str, lost: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for label in _LABELS:
        for config_map in (await api.list(CONFIG_MAPS, namespace=namespace, label_selector=label)).items:
            data = config_map.get("data") or {}
            texts = {file: str(data[file]) for file in lost if file in data and file not in found}
            again = {file: text for file, text in texts.items() if trust_file(text) == file}
            if again:
                log.info("bundle.found_again", files=sorted(again), config_map=config_map["metadata"]["name"])
            found |= again
    return found
