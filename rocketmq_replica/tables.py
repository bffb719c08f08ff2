"""Tables beside the log, in files as Java writes them: consumers' offsets, delivery of delayed messages, consumer groups.

A slave copies them from its master (``ha/metadata_sync.py``). Losing the last seconds of offsets means reading some messages twice,
which at-least-once consumers expect.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketmq_replica.log.disk import ReplacedFile, Replacement, compact_json, load_table, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path


_SEPARATOR = "@"


class TakenOffset(NamedTuple):
    """A consumer group's offset in a queue, committed at a slave."""

    group: str
    topic: str
    queue_id: int
    offset: int


class _SavedLater:
    """A table whose file is written every few seconds, in a thread."""

    def __init__(self, path: Path) -> None:
        self._file = ReplacedFile(path)
        self._changed = False

    def to_json(self) -> dict[str, Any]:
        """Return the document in Java's form."""
        raise NotImplementedError

    def save(self) -> None:
        """Make the table durable now, also while a thread writes an older content. After an OSError it is saved later."""
        self._changed = True
        if (changes := self.take_changes()) is not None:
            self.write(changes)

    def take_changes(self) -> Replacement | None:
        """Return the file's new content for ``write``, None if nothing has changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        return self._file.take(lambda: compact_json(self.to_json()))

    def write(self, replacement: Replacement) -> None:
        """Make the content durable; may run in a thread. After an OSError ``take_changes`` returns content again."""
        try:
            self._file.write(replacement)
        except OSError:
            self._changed = True
            raise


class ConsumerOffsets(_SavedLater):
    """``topic@group`` -> queue id -> next offset."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one."""
        super().__init__(path)
        self._table: dict[str, dict[int, int]] = {}
        # The groups of each topic in the table; None after a change of its keys that was not followed.
        self._groups_by_topic: dict[str, set[str]] | None = None
        # Offsets committed at this slave that no copy of the master's table contained so far, by (topic@group, queue id).
        self._taken: dict[tuple[str, int], int] = {}
        load_table(path, lambda table: self.replace_all(table["offsetTable"]), "offset table")
        self._changed = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset that the group reads; None if it never committed one."""
        return self._table.get(f"{topic}{_SEPARATOR}{group}", {}).get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset."""
        self._table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = offset
        if self._groups_by_topic is not None:
            self._groups_by_topic.setdefault(topic, set()).add(group)
        self._changed = True

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set the group's offset, only forward. Return False if it is as far already."""
        known = self.get(group, topic, queue_id)
        if known is not None and offset <= known:
            return False
        self.put(group, topic, queue_id, offset)
        return True

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Take a commit at this slave, only forward, and keep it until the master has it.

        Another consumer of the group may read the same queue at the master and be further.
        """
        if self.advance(group, topic, queue_id, offset):
            self._taken[f"{topic}{_SEPARATOR}{group}", queue_id] = offset

    def taken(self) -> list[TakenOffset]:
        """Return the offsets to report to the master."""
        found = ((key.partition(_SEPARATOR), queue_id, offset) for (key, queue_id), offset in self._taken.items())
        return [TakenOffset(group, topic, queue_id, offset) for (topic, _, group), queue_id, offset in found]

    def reported(self, one: TakenOffset) -> None:
        """Forget an offset that the master has taken or refused."""
        key = (f"{one.topic}{_SEPARATOR}{one.group}", one.queue_id)
        if self._taken.get(key) == one.offset:
            del self._taken[key]

    def report_last(self, one: TakenOffset) -> None:
        """Put an offset that the master could not take at the end of the next report."""
        key = (f"{one.topic}{_SEPARATOR}{one.group}", one.queue_id)
        if (offset := self._taken.pop(key, None)) is not None:
            self._taken[key] = offset

    def forget_taken(self) -> None:
        """Forget the offsets to report: this replica is master."""
        self._taken = {}

    def replace_all(self, table: Mapping[str, Mapping[str, int]]) -> None:
        """Take the master's table, and keep later offsets that were committed at this slave."""
        new = {key: {int(queue): int(offset) for queue, offset in queues.items()} for key, queues in table.items()}
        self._taken = {
            (key, queue): offset
            for (key, queue), offset in self._taken.items()
            if offset > new.get(key, {}).get(queue, -1)
        }
        for (key, queue), offset in self._taken.items():
            new.setdefault(key, {})[queue] = offset
        self._changed = self._changed or new != self._table
        self._table, self._groups_by_topic = new, None

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """Remove the offsets of deleted topics."""
        kept = {key: queues for key, queues in self._table.items() if key.partition(_SEPARATOR)[0] not in topics}
        self._changed = self._changed or len(kept) < len(self._table)
        self._table, self._groups_by_topic = kept, None
        self._taken = {(key, queue): offset for (key, queue), offset in self._taken.items() if key in kept}

    def groups_of(self, topic: str) -> set[str]:
        """Return every group that ever committed an offset of the topic."""
        if self._groups_by_topic is None:
            # Once for all topics: a scan of the table for each of them held up heartbeats (1000 topics of 1000 groups: minutes).
            self._groups_by_topic = {}
            for name, _, group in (key.partition(_SEPARATOR) for key in self._table):
                self._groups_by_topic.setdefault(name, set()).add(group)
        return set(self._groups_by_topic.get(topic, ()))

    def groups(self) -> set[str]:
        """Return every group that ever committed an offset."""
        return {key.partition(_SEPARATOR)[2] for key in self._table}

    def to_json(self) -> dict[str, Any]:
        """Return Java's ConsumerOffsetSerializeWrapper."""
        table = {key: {str(queue): offset for queue, offset in queues.items()} for key, queues in self._table.items()}
        return {"offsetTable": table}


class DelayOffsets(_SavedLater):
    """``config/delayOffset.json``: delay level -> queue offset of the next message to deliver.

    The master writes it as it delivers (``clients/delayed_delivery.py``). Slaves copy it (45), so the next master, Java or Python,
    continues from there.
    """

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one."""
        super().__init__(path)
        loaded: dict[str, Any] | None = load_table(path, dict, "table of delay offsets")
        self.document = {"offsetTable": {}} if loaded is None else loaded

    def get(self, level: int) -> int:
        """Return the queue offset of the level's next message."""
        offset = (self.document.get("offsetTable") or {}).get(str(level), 0)
        return offset if isinstance(offset, int) else 0

    def put(self, level: int, offset: int) -> None:
        """Set the queue offset of the level's next message: all before it are delivered, confirmed and durable."""
        table = dict(self.document.get("offsetTable") or {})
        self.document = {**self.document, "offsetTable": {**table, str(level): offset}}
        self._changed = True

    def replace(self, document: Mapping[str, Any]) -> None:
        """Take and save the master's table. After an OSError it is saved later."""
        if document.get("offsetTable") and dict(document) != self.document:
            self.document = dict(document)
            self.save()

    def put_back(self, offsets: Mapping[int, int]) -> None:
        """Set the offsets of these levels, durably. After an OSError they are saved later."""
        for level, offset in offsets.items():
            self.put(level, offset)
        if offsets:
            self.save()

    def to_json(self) -> dict[str, Any]:
        """Return Java's DelayOffsetSerializeWrapper."""
        return self.document


logger = logging.getLogger(__name__)

MAX_GROUP_CHARACTERS = 255
MAX_GROUPS = 20_000
"""The limit of groups that are created on request (200)."""
MAX_RETRIES = 1000


class SubscriptionGroups:
    """Consumer groups and their settings, in ``config/subscriptionGroup.json`` as Java writes it.

    A group is created with Java's defaults when a consumer of it first appears. A slave copies the master's table with all
    settings, also those that have no effect here: it may be the next master, and a Java slave overwrites its table with ours.
    """

    def __init__(self, path: Path, *, now_ms: int) -> None:
        """Load the file, if there is one."""
        self._path = path
        self._table: dict[str, dict[str, Any]] = {}
        self._forbidden: dict[str, Any] = {}
        self._counter = 0
        self._timestamp_ms = now_ms
        load_table(path, self._take, "table of consumer groups")

    def find(self, name: str) -> dict[str, Any] | None:
        """Return Java's SubscriptionGroupConfig of a group; None if it does not exist."""
        return self._table.get(name)

    def adopt(self, names: Iterable[str]) -> None:
        """Create the groups that do not exist."""
        missing = [name for name in names if name not in self._table and 0 < len(name) <= MAX_GROUP_CHARACTERS]
        if missing:
            self._table |= {name: _with_defaults(name) for name in missing}
            self._changed()

    def put(self, settings: object) -> None:
        """Create or change a group. Raise ValueError for a value that is none, and for a setting that has no effect here."""
        if not isinstance(settings, dict):
            raise ValueError("expected the settings of one group")  # noqa: TRY004 - the caller's input, not its type
        name = settings.get("groupName")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_GROUP_CHARACTERS:
            raise ValueError(f"groupName {str(name)[:50]!r}, expected 1 to {MAX_GROUP_CHARACTERS} characters")
        if name not in self._table and len(self._table) >= MAX_GROUPS:
            raise ValueError(f"group {name}: {len(self._table)} groups are there, expected at most {MAX_GROUPS}")
        known = self._table.get(name) or _with_defaults(name)
        changed = known | _effective(name, settings)
        for key, value in settings.items():
            # Java takes attributes as changes of those that are there.
            if value not in (None, changed.get(key)) and not (key == "attributes" and not value):
                told = f"{key}={str(value)[:50]} of group {name}"
                raise ValueError(f"{told}: this replica does not act on it, expected {known.get(key)!r}")
        if self._table.get(name) != changed:
            self._table = {**self._table, name: changed}
            self._changed()

    def may_consume(self, name: str) -> bool:
        """Whether the group is given messages, also one that does not exist yet."""
        return (self._table.get(name) or {}).get("consumeEnable") is not False

    def replace_all(self, document: Mapping[str, Any]) -> None:
        """Take the master's table, a SubscriptionGroupWrapper. Raise KeyError, TypeError or AttributeError if it is not one."""
        before = (self._table, self._forbidden)
        self._take(document)
        if (self._table, self._forbidden) != before:
            self._changed()

    def to_json(self) -> dict[str, Any]:
        """Return Java's SubscriptionGroupWrapper."""
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
            replace_file(self._path, compact_json(self.to_json()))
        except OSError as error:
            logger.warning("%s: not saved: %s", self._path, error)  # the next change, or the next copy, saves it


def _effective(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the settings that this replica acts on. Raise ValueError for another type or a number out of bounds."""
    found: dict[str, Any] = {}
    if (enabled := settings.get("consumeEnable")) is not None:
        if not isinstance(enabled, bool):
            raise ValueError(f"consumeEnable={str(enabled)[:50]} of group {name}, expected true or false")
        found["consumeEnable"] = enabled
    if (retries := settings.get("retryMaxTimes")) is not None:
        if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= MAX_RETRIES:
            raise ValueError(f"retryMaxTimes={str(retries)[:50]} of group {name}, expected 0 to {MAX_RETRIES}")
        found["retryMaxTimes"] = retries
    return found


def _with_defaults(name: str) -> dict[str, Any]:
    """Return Java's SubscriptionGroupConfig with the defaults of its constructor."""
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


@dataclass(frozen=True)
class Metadata:
    """The tables that a slave copies, except the topics, which the broker has."""

    offsets: ConsumerOffsets
    groups: SubscriptionGroups
    delay_offsets: DelayOffsets
