"""What an API server would say to a BrokerGroup, asked of no cluster: the kind's own schema and rules, judged as the sandbox does.

Heavy, so only `generate` brings it: the types behind the CRD, and CEL.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.definitions.generate import KINDS, custom_resource_definition
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from kube_sandbox.api_server.store import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator


def complaints(manifest: dict[str, Any]) -> list[str]:
    """`field: what is wrong with its value`, everything at once; empty for what would be taken. The manifest stays as it is."""
    return list(dict.fromkeys(_complaints(copy.deepcopy(manifest))))


def _complaints(obj: dict[str, Any]) -> Iterator[str]:
    [kind] = [kind for kind in KINDS if kind.type is BrokerGroup]
    [resource] = custom_resource_types(custom_resource_definition(kind))
    for field in resource.behaviour.drop_unknown_fields(obj):
        yield f"{field}: no such field"
    resource.behaviour.set_defaults(obj)
    for error in metadata.validate(obj["metadata"], None):
        yield f"{error.field}: {error.message}"
    if namespace := obj["metadata"].get("namespace"):
        # A namespace is an object too, and its name stricter than ours: no dots.
        for error in metadata.validate({"name": namespace}, None, name_rule="label"):
            yield f"metadata.namespace: {error.message}"
    for error in resource.behaviour.validate(obj, None, ""):
        yield f"{error.field}: {error.message}"
