"""What a broker knows besides its log (topics, subscription groups, consumer offsets), and what one lacks of another. Pure.

A slave copies these by asking its master (Java: at most every 10 s), not through the log. So a slave that is in sync may lack a
topic, and a switchover to it loses the topic (upstream #9804). Only what the master had a while ago and has still must be
there; of offsets the slave must have as much or more. A subscription group with default settings is no difference where brokers
create such groups for the first consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import load_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Of a member that lacks thousands of topics, this many are named.
MOST_DIFFERENCES = 50

_TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "perm")
_GROUP_FIELDS = ("consumeEnable", "consumeFromMinEnable", "consumeBroadcastEnable", "retryQueueNums", "retryMaxTimes")
_GROUP_DEFAULTS = (True, True, True, 1, 16)

Entry = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One broker's, at one moment. Offsets are by `topic@group`, then by queue."""

    topics: Mapping[str, Entry] = field(default_factory=dict)
    groups: Mapping[str, Entry] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
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
            offsets={
                name: {int(queue): int(offset) for queue, offset in queues.items()}
                for name, queues in offset_table["offsetTable"].items()
            },
            topics_version=_version(topic_table),
            groups_version=_version(groups_table),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BodyError(f"metadata of a broker: unreadable: {error!r}") from error


def _entries(table: Mapping[str, Mapping[str, object]], fields: tuple[str, ...]) -> dict[str, Entry]:
    return {name: tuple(entry.get(one) for one in fields) for name, entry in table.items()}


def _version(document: Mapping[str, Any]) -> str:
    version = document.get("dataVersion") or {}
    return f"{version.get('stateVersion', 0)}/{version.get('counter', 0)}"


def settled(before: Metadata, now: Metadata, named: Collection[str] = ()) -> Metadata:
    """Return what the master had before and has still, and its topics and groups of these names: slaves must have it by now."""
    has = now.offsets
    return replace(
        now,
        topics={name: one for name, one in now.topics.items() if name in named or before.topics.get(name) == one},
        groups={name: one for name, one in now.groups.items() if name in named or before.groups.get(name) == one},
        offsets={
            name: {queue: min(offset, has[name][queue]) for queue, offset in queues.items() if queue in has[name]}
            for name, queues in before.offsets.items()
            if name in has
        },
    )


def lacking(
    broker_id: int, expected: Metadata, found: Metadata, *, makes_groups: bool
) -> tuple[MetadataDifference, ...]:
    """Return what this broker lacks of what is expected, or has otherwise."""
    entries, offsets = list[MetadataDifference](), list[MetadataDifference]()
    for name, entry in expected.topics.items():
        if found.topics.get(name) != entry:
            entries.append(MetadataDifference(broker_id, MetadataKind.TOPIC, name, expected.topics_version))
    for name, entry in expected.groups.items():
        harmless = makes_groups and entry == _GROUP_DEFAULTS and name not in found.groups
        if found.groups.get(name) != entry and not harmless:
            entries.append(
                MetadataDifference(broker_id, MetadataKind.SUBSCRIPTION_GROUP, name, expected.groups_version)
            )
    for name, queues in expected.offsets.items():
        has = found.offsets.get(name, {})
        if any(has.get(queue, 0) < offset for queue, offset in queues.items()):
            offsets.append(MetadataDifference(broker_id, MetadataKind.CONSUMER_OFFSET, name))
    # Offsets last: fifty that are late must not hide a topic that is not there.
    return tuple(sorted([*sorted(entries), *sorted(offsets)][:MOST_DIFFERENCES]))
