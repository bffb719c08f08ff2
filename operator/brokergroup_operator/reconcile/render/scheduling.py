"""Builds the part of a PodSpec that says where a pod may run. Pure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.pod_fields import AntiAffinity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.pod_fields import SchedulingSpec


def scheduling(wish: SchedulingSpec, labels: Mapping[str, str]) -> JsonObject:
    """The fields of the PodSpec; only those that say something. `labels`: by which the pods that are kept apart are known."""
    selector: JsonObject = {"matchLabels": dict(labels)}
    fields: JsonObject = {
        "affinity": _affinity(wish, selector),
        "nodeSelector": dict(wish.node_selector),
        "tolerations": [without_nulls(msgspec.to_builtins(item)) for item in wish.tolerations],
        "topologySpreadConstraints": [
            msgspec.to_builtins(item) | {"labelSelector": selector} for item in wish.topology_spread_constraints
        ],
        "priorityClassName": wish.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _affinity(wish: SchedulingSpec, selector: JsonObject) -> JsonObject:
    """What the user wrote, and our own term beside it: another term of theirs doesn't switch ours off, antiAffinity does."""
    affinity: JsonObject = copy.deepcopy(wish.affinity)
    if wish.anti_affinity is AntiAffinity.NONE:
        return affinity
    term: JsonObject = {"topologyKey": wish.topology_key, "labelSelector": selector}
    if wish.anti_affinity is AntiAffinity.REQUIRED:
        terms, ours = "requiredDuringSchedulingIgnoredDuringExecution", term
    else:
        terms, ours = "preferredDuringSchedulingIgnoredDuringExecution", {"weight": 100, "podAffinityTerm": term}
    apart = affinity.setdefault("podAntiAffinity", {})
    apart[terms] = [ours, *apart.get(terms, [])]
    return affinity
