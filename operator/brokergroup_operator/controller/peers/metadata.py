"""What a slave copies from its master besides the log, as brokers answer it (21, 201, 43)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import load_json

_TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "perm")
_GROUP_FIELDS = ("consumeEnable", "consumeFromMinEnable", "consumeBroadcastEnable", "retryQueueNums", "retryMaxTimes")

Entry = tuple[object, ...]
# By `topic@group`, then by queue: what the consumer group reads next.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One broker's, at one moment."""

    topics: Mapping[str, Entry] = field(default_factory=dict)
    groups: Mapping[str, Entry] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    topics_version: str = ""
    groups_version: str = ""


def read_metadata(topics: bytes | None, groups: bytes | None, offsets: bytes | None) -> Metadata:
    """Read the bodies of 21, 201 and 43. Raise `BodyError` for an invalid one."""
    try:
        topic_table, groups_table = load_json(topics or b""), load_json(groups or b"")
        offset_table = load_json(offsets or b"")
        return Metadata(
            topics=_entries(topic_table["topicConfigTable"], _TOPIC_FIELDS),
            groups=_entries(groups_table["subscriptionGroupTable"], _GROUP_FIELDS),
            offsets=offsets_of(offset_table),
            topics_version=_version(topic_table),
            groups_version=_version(groups_table),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BodyError(f"metadata of a broker: unreadable: {error!r}") from error


def without_leftovers(metadata: Metadata) -> Metadata:
    """Return it without offsets of topics or groups that are gone: no consumer reads by them, and a broker takes no such offset."""

    def is_in_use(name: str) -> bool:
        topic, _, group = name.partition("@")
        return topic in metadata.topics and group in metadata.groups

    offsets = {name: queues for name, queues in metadata.offsets.items() if is_in_use(name)}
    return replace(metadata, offsets=offsets)


def offsets_of(body: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Return the offsets in a body of 43."""
    return {
        name: {int(queue): int(offset) for queue, offset in queues.items()}
        for name, queues in body["offsetTable"].items()
    }


def _entries(table: Mapping[str, Mapping[str, object]], fields: tuple[str, ...]) -> dict[str, Entry]:
    return {name: tuple(entry.get(one) for one in fields) for name, entry in table.items()}


def _version(document: Mapping[str, Any]) -> str:
    version = document.get("dataVersion") or {}
    return f"{version.get('stateVersion', 0)}/{version.get('counter', 0)}"
