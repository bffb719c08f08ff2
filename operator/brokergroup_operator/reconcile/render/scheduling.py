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
    from brokergroup_operator.api.pod_fields import AntiAffinitySpec, PlacementSpec


def scheduling(apart: AntiAffinitySpec, wish: PlacementSpec, labels: Mapping[str, str]) -> JsonObject:
    """The fields of the PodSpec; only those that say something. `labels`: by which the pods that are kept apart are known."""
    selector: JsonObject = {"matchLabels": dict(labels)}
    fields: JsonObject = {
        "affinity": _affinity(apart, wish, selector),
        "nodeSelector": dict(wish.node_selector),
        "tolerations": [without_nulls(msgspec.to_builtins(item)) for item in wish.tolerations],
        "topologySpreadConstraints": [
            msgspec.to_builtins(item) | {"labelSelector": selector} for item in wish.topology_spread_constraints
        ],
        "priorityClassName": wish.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _affinity(apart: AntiAffinitySpec, wish: PlacementSpec, selector: JsonObject) -> JsonObject:
    """What the user wrote, and our own term beside it: another term of theirs doesn't switch ours off, antiAffinity does."""
    affinity: JsonObject = copy.deepcopy(wish.affinity)
    if apart.type is AntiAffinity.NONE:
        return affinity
    term: JsonObject = {"topologyKey": apart.topology_key, "labelSelector": selector}
    if apart.type is AntiAffinity.REQUIRED:
        terms, ours = "requiredDuringSchedulingIgnoredDuringExecution", term
    else:
        terms, ours = "preferredDuringSchedulingIgnoredDuringExecution", {"weight": 100, "podAffinityTerm": term}
    all_terms = affinity.setdefault("podAntiAffinity", {})
    all_terms[terms] = [ours, *all_terms.get(terms, [])]
    return affinity
