"""Consumer groups and their settings, as Java keeps them in ``config/subscriptionGroup.json``.

A group is made with Java's defaults when a consumer of it is first heard of. A slave takes its master's table as it is, with every
setting this replica does not act on itself: it may be master next, and a Java slave then overwrites its own table with ours.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

MAX_GROUP_CHARACTERS = 255


class SubscriptionGroups:
    """The table, its data version, and its file."""

    def __init__(self, path: Path, *, now_ms: int) -> None:
        """Load the file, if there is one."""
        self._path = path
        self._table: dict[str, dict[str, Any]] = {}
        self._forbidden: dict[str, Any] = {}
        self._counter = 0
        self._timestamp_ms = now_ms
        sync_names(path.parent)
        if path.exists():
            try:
                self._take(json.loads(path.read_bytes()))
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
                raise StoreFileError(f"{path}: is no table of consumer groups: {error!r}") from error

    def find(self, name: str) -> dict[str, Any] | None:
        """Java's SubscriptionGroupConfig of a group, if it exists."""
        return self._table.get(name)

    def adopt(self, names: Iterable[str]) -> None:
        """Make sure that these groups exist."""
        missing = [name for name in names if name not in self._table and 0 < len(name) <= MAX_GROUP_CHARACTERS]
        if missing:
            self._table |= {name: _with_defaults(name) for name in missing}
            self._changed()

    def create(self, settings: object) -> None:
        """Make a group as an operator asks; ValueError for a setting that this replica would not act on."""
        if not isinstance(settings, dict):
            raise ValueError("expected the settings of one group")  # noqa: TRY004 - the caller's input, not its type
        name = settings.get("groupName")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_GROUP_CHARACTERS:
            raise ValueError(f"groupName {str(name)[:50]!r}, expected 1 to {MAX_GROUP_CHARACTERS} characters")
        known = self._table.get(name) or _with_defaults(name)
        for key, value in settings.items():
            if value not in (None, known.get(key)):
                raise ValueError(
                    f"{key}={value!r} of group {name}: this replica does not act on it, expected {known.get(key)!r}"
                )
        self.adopt([name])

    def replace_all(self, document: Mapping[str, Any]) -> None:
        """Take the master's table, Java's SubscriptionGroupWrapper; KeyError, TypeError or AttributeError if it is none."""
        before = (self._table, self._forbidden)
        self._take(document)
        if (self._table, self._forbidden) != before:
            self._changed()

    def to_json(self) -> dict[str, Any]:
        """Java's SubscriptionGroupWrapper."""
        return {
            "subscriptionGroupTable": self._table,
            "forbiddenTable": self._forbidden,
            "dataVersion": {"stateVersion": 0, "timestamp": self._timestamp_ms, "counter": self._counter},
        }

    def _take(self, document: Mapping[str, Any]) -> None:
        table = {str(name): dict(settings) for name, settings in document["subscriptionGroupTable"].items()}
        self._forbidden = dict(document.get("forbiddenTable") or {})
        self._table = table

    def _changed(self) -> None:
        self._counter += 1
        try:
            replace_file(self._path, json.dumps(self.to_json(), separators=(",", ":")).encode())
        except OSError as error:
            logger.warning("%s: not saved: %s", self._path, error)  # the next change, or the next copy, saves it


def _with_defaults(name: str) -> dict[str, Any]:
    """Java's SubscriptionGroupConfig as its constructor leaves it."""
    return {
        "groupName": name,
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
