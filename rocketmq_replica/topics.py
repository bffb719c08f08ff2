"""Topics of this replica: created on first use, saved in ``config/topics.json`` as Java writes it.

Each change moves the data version, so that NameServers read the topics again. A slave can take over without a copy of the master's
file: its log names every topic with a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rocketmq_replica.log.disk import ReplacedFile, Replacement, compact_json, load_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


PERMISSION_READ = 4
PERMISSION_WRITE = 2
# All bits of a topic's permission: read, write, inherit.
PERMISSIONS = 7
DEFAULT_TOPIC = "TBW102"
_JAVAS_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
_JAVAS_PREFIX = "rmq_sys_"
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_QUEUES = 1024
MAX_TOPIC_CHARACTERS = 127
MAX_RETRY_TOPIC_CHARACTERS = 255
RETRY_PREFIX = "%RETRY%"
MAX_TOPICS = 20_000
"""The limit for topics of clients and operators. Topics named by the log or a master may exceed it."""


@dataclass(frozen=True)
class Topic:
    """A topic as clients see it, with the fields that a Java broker needs when it is the next master."""

    name: str
    read_queues: int
    write_queues: int
    permission: int = PERMISSION_READ | PERMISSION_WRITE
    filter_type: str = "SINGLE_TAG"
    system_flag: int = 0
    ordered: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self, *, permitted: int = PERMISSIONS) -> dict[str, Any]:
        """Return Java's TopicConfig, with those of its permissions that are `permitted`."""
        return {
            "topicName": self.name,
            "readQueueNums": self.read_queues,
            "writeQueueNums": self.write_queues,
            "perm": self.permission & permitted,
            "topicFilterType": self.filter_type,
            "topicSysFlag": self.system_flag,
            "order": self.ordered,
            "attributes": self.attributes,
        }


class InvalidTopicError(ValueError):
    """The name or the settings cannot be those of a topic."""


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless Java accepts the name."""
    limit = MAX_RETRY_TOPIC_CHARACTERS if name.startswith(RETRY_PREFIX) else MAX_TOPIC_CHARACTERS
    if not 0 < len(name) <= limit:
        raise InvalidTopicError(f"topic of {len(name)} characters, expected 1 to {limit}")
    if not _NAME.fullmatch(name):
        raise InvalidTopicError(f"topic {name[:50]!r}, expected letters, digits and %|_- only")


def changed_attributes(attributes: dict[str, str], change: str) -> dict[str, str]:
    """Return the attributes changed as in Java: ``+name=value`` and ``-name``, several separated by commas."""
    changed = dict(attributes)
    for part in filter(None, (each.strip() for each in change.split(","))):
        name, equals, value = part[1:].partition("=")
        if part[0] == "+" and name and equals and value:
            changed[name] = value
        elif part[0] == "-" and name and not equals:
            changed.pop(name, None)
        else:
            raise InvalidTopicError(f"attribute {part[:50]!r}, expected +name=value or -name")
    return changed


class Topics:
    """The table of topics, its data version, and its file."""

    def __init__(self, path: Path, *, system_topics: Iterable[str], queue_count: int, now_ms: int) -> None:
        """Load the file, if there is one, and add the topics that every broker has."""
        self._file = ReplacedFile(path)
        self._unsaved = False
        self._default_queue_count = queue_count
        self._topics = {topic.name: topic for topic in load_table(path, topics_from_json, "topic table") or ()}
        self.state_version = 0
        self.counter = 1
        self.timestamp_ms = now_ms
        self._system_topics = _JAVAS_TOPICS | frozenset(system_topics)
        for name in (DEFAULT_TOPIC, *system_topics):
            self._topics.setdefault(name, Topic(name, queue_count if name == DEFAULT_TOPIC else 1, queue_count, 7))

    def find(self, name: str) -> Topic | None:
        """Return the topic; None if it does not exist."""
        return self._topics.get(name)

    def is_of_the_system(self, name: str) -> bool:
        """Whether it is a system topic (Java's TopicValidator.isSystemTopic)."""
        return name in self._system_topics or name.startswith(_JAVAS_PREFIX)

    def all(self) -> list[Topic]:
        """Return every topic."""
        return list(self._topics.values())

    def create(self, name: str, *, queue_count: int | None, now_ms: int) -> Topic:
        """Create a topic with so many queues, or change their number. It is saved soon, off the event loop (``take_changes``).

        No answer waits for the disk: the log names every topic with a message, and a start creates it from there.
        """
        count = self._default_queue_count if queue_count is None else queue_count
        known = self._topics.get(name) or Topic(name, count, count)
        topic = replace(known, read_queues=count, write_queues=count)
        self._check(topic)
        self._topics = {**self._topics, name: topic}
        self.changed(now_ms=now_ms)
        self._unsaved = True
        return topic

    def put(self, topic: Topic, *, now_ms: int) -> Topic:
        """Create or replace a topic, durably. After an OSError nothing has changed."""
        self._check(topic)
        self._replace({**self._topics, topic.name: topic}, now_ms)
        return topic

    def delete(self, name: str, *, now_ms: int) -> bool:
        """Delete a topic, durably. Return False if it does not exist. After an OSError nothing has changed."""
        if name not in self._topics:
            return False
        self._replace({other: topic for other, topic in self._topics.items() if other != name}, now_ms)
        return True

    def _replace(self, topics: dict[str, Topic], now_ms: int) -> None:
        before, self._topics = self._topics, topics
        self.changed(now_ms=now_ms)
        try:
            self.save()
        except OSError:
            self._topics = before
            raise

    def _check(self, topic: Topic) -> None:
        check_topic_name(topic.name)
        if topic.name not in self._topics and len(self._topics) >= MAX_TOPICS:
            raise InvalidTopicError(
                f"topic {topic.name!r}: there are {len(self._topics)} topics, expected at most {MAX_TOPICS}"
            )

    def adopt(self, queues: Iterable[tuple[str, int]], *, now_ms: int) -> None:
        """Create or extend topics for these queues of the log."""
        wanted: dict[str, int] = {}
        for name, queue_id in queues:
            wanted[name] = max(wanted.get(name, 0), queue_id + 1)
        missing = {name: count for name, count in wanted.items() if self._too_small(name, count)}
        for name, count in missing.items():
            enough = max(count, self._default_queue_count)
            known = self._topics.get(name) or Topic(name, enough, enough)
            more = max(enough, known.write_queues)
            self._topics[name] = replace(known, read_queues=enough, write_queues=more)
        if missing:
            self.changed(now_ms=now_ms)
            self.save()

    def replace_all(self, topics: Iterable[Topic], *, now_ms: int) -> None:
        """Take and save the master's table."""
        table = {topic.name: topic for topic in topics}
        if table and table != self._topics:
            self._topics = table
            self.changed(now_ms=now_ms)
            self.save()

    def changed(self, *, now_ms: int) -> None:
        """Move the data version."""
        self.counter += 1
        self.timestamp_ms = now_ms

    def data_version(self) -> dict[str, int]:
        """Return Java's DataVersion. Its state version is the master epoch, by which a NameServer decides between two masters."""
        return {"stateVersion": self.state_version, "timestamp": self.timestamp_ms, "counter": self.counter}

    def to_json(self, *, permitted: int = PERMISSIONS) -> dict[str, Any]:
        """Return Java's TopicConfigSerializeWrapper; `permitted` as in `Topic.to_json`."""
        return {
            "topicConfigTable": {topic.name: topic.to_json(permitted=permitted) for topic in self._topics.values()},
            "dataVersion": self.data_version(),
        }

    def save(self) -> None:
        """Make the table durable."""
        self._unsaved = False
        self.write(self._file.take(self._content))

    def take_changes(self) -> Replacement | None:
        """Return new content for ``write``; None if no topic was created since the last save."""
        if not self._unsaved:
            return None
        self._unsaved = False
        return self._file.take(self._content)

    def write(self, replacement: Replacement) -> None:
        """Make the content durable; may run in a thread. After an OSError ``take_changes`` returns content again."""
        try:
            self._file.write(replacement)
        except OSError:
            self._unsaved = True
            raise

    def _content(self) -> bytes:
        return compact_json(self.to_json())

    def _too_small(self, name: str, queue_count: int) -> bool:
        topic = self._topics.get(name)
        return topic is None or topic.read_queues < queue_count


def topics_from_json(document: dict[str, Any]) -> list[Topic]:
    """Return the topics of Java's TopicConfigSerializeWrapper."""
    return [
        Topic(
            name,
            int(entry["readQueueNums"]),
            int(entry["writeQueueNums"]),
            int(entry["perm"]),
            str(entry.get("topicFilterType") or "SINGLE_TAG"),
            int(entry.get("topicSysFlag") or 0),
            bool(entry.get("order")),
            dict(entry.get("attributes") or {}),
        )
        for name, entry in document["topicConfigTable"].items()
    ]
