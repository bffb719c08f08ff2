"""Compare the producer's acknowledgements with a consumer's messages: lost, duplicated, changed. Pure.

A message may stand in the log more often than once only when an attempt to send it had no known outcome: the producer counts
those attempts (`copies`), and there is no other excuse. The acknowledgement has a queue and an offset: the message has to be
there, for ever, under any master.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Acknowledged(NamedTuple):
    """One message the broker said it has; at most `copies` of it can be in the log."""

    key: str
    crc: int
    queue: int
    offset: int
    copies: int


class Seen(NamedTuple):
    """One delivery to a consumer."""

    key: str
    crc: int
    queue: int
    offset: int


@dataclass
class Account:
    """The mismatches."""

    lost: list[str] = field(default_factory=list)
    duplicates_beyond_retry: list[str] = field(default_factory=list)

    def add(self, other: Account) -> None:
        self.lost += other.lost
        self.duplicates_beyond_retry += other.duplicates_beyond_retry


def account(reader: str, acknowledged: Sequence[Acknowledged], seen: Sequence[Seen]) -> Account:
    """Compare one reader's deliveries with the promises; every complaint begins with the reader's name."""
    result = Account()
    at = {(each.queue, each.offset): each for each in seen}
    for promise in acknowledged:
        found = at.get((promise.queue, promise.offset))
        if found is None or (found.key, found.crc) != (promise.key, promise.crc):
            place = f"queue {promise.queue} offset {promise.offset}"
            result.lost.append(f"{reader}: {promise.key} was acknowledged at {place}, there is {found}")
    copies = Counter(each.key for each in at.values())
    allowed = {promise.key: promise.copies for promise in acknowledged}
    for key, count in copies.items():
        if key in allowed and count > allowed[key]:
            result.duplicates_beyond_retry.append(f"{reader}: {key} {count} times in the log, at most {allowed[key]}")
    deliveries = Counter((each.queue, each.offset) for each in seen)
    for (queue, offset), count in deliveries.items():
        if count > 1:
            result.duplicates_beyond_retry.append(f"{reader}: queue {queue} offset {offset} delivered {count} times")
    return result
