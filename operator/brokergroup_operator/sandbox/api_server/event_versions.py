"""Events are one set of objects with two faces: core/v1 and events.k8s.io/v1 (kubernetes/pkg/apis/events/v1/conversion.go)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.sandbox.api_server.json_values import JsonObject

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_OLD_NAMES = {new: old for old, new in _NEW_NAMES.items()}


def to_events_group(event: JsonObject) -> JsonObject:
    """A core/v1 Event as events.k8s.io/v1 shows it."""
    return {_NEW_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": "events.k8s.io/v1"}


def to_core(event: JsonObject) -> JsonObject:
    """An events.k8s.io/v1 Event as core/v1 keeps it."""
    return {_OLD_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": "v1"}
