"""Posts Kubernetes Events about groups and clusters. One that cannot be posted is logged and forgotten: nothing waits for it."""

from __future__ import annotations

import datetime as dt
import secrets
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import EVENTS

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.plan import Note

log = structlog.get_logger(__name__)
REPORTER = f"{names.GROUP}/operator"
TOLD_AGAIN_AFTER_SECONDS = 3600.0


def build_event(group_object: JsonObject, note: Note, *, name_suffix: str, now: str, instance: str) -> JsonObject:
    """A core v1 Event, which kubectl describe shows. Pure."""
    metadata = group_object["metadata"]
    event: JsonObject = {
        "metadata": {"name": f"{metadata['name']}.{name_suffix}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            # An item of a list has no kind: it is a group of ours.
            "kind": group_object.get("kind") or names.BROKER_GROUP_KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
        },
        "reason": note.reason,
        "message": note.message,
        "type": "Warning" if note.warning else "Normal",
        "action": "Reconcile",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": REPORTER,
        "reportingInstance": instance,
    }
    if note.related:
        event["related"] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": note.related,
            "namespace": metadata["namespace"],
        }
    return event


class EventPoster:
    """Posts through our own client."""

    def __init__(self, api: KubernetesApi, *, instance: str, timeout_seconds: float) -> None:
        self._api = api
        self._instance = instance
        self._timeout_seconds = timeout_seconds
        self._told: dict[tuple[str, str, str, str], float] = {}

    async def post_once(self, group_object: JsonObject, note: Note) -> bool:
        """For what a pass may run into again and again: the same note about the same group is posted once an hour.

        Returns whether it was posted now.
        """
        metadata = group_object["metadata"]
        words = (str(metadata.get("namespace")), str(metadata["name"]), note.reason, note.message)
        now_seconds = time.monotonic()
        self._told = {key: at for key, at in self._told.items() if now_seconds - at < TOLD_AGAIN_AFTER_SECONDS}
        if words in self._told:
            return False
        self._told[words] = now_seconds
        await self.post(group_object, note)
        return True

    async def post(self, group_object: JsonObject, note: Note) -> None:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = build_event(group_object, note, name_suffix=secrets.token_hex(8), now=now, instance=self._instance)
        try:
            await self._api.create(EVENTS, event, timeout_seconds=self._timeout_seconds)
        except ApiError as error:
            log.warning("event.not_posted", reason=note.reason, error=str(error))
