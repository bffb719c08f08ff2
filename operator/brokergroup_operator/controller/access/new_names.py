"""How many names an address may begin: with the first id of a name (1013) its record becomes durable, and stays for good.

RocketMQ's 1012 only reads, and what is kept of a name in memory gives way (``FixedDirectory``). A record cannot: the broker that
was answered 1013 has the id on its disk, may register with it days later, and ids are never given again. So where any name may
begin, each address has a share of records of names that no broker has registered under. A place of the share comes back when a
broker registers under the name, or after an hour: a closed connection gives none back, for opening another one costs nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey

KEPT_SECONDS = 3600.0


class NewNames:
    """The names that were begun lately and have no registered broker, with the address that began each. None: no limit."""

    def __init__(self, most_of_one_host: int | None) -> None:
        self._most_of_one_host = most_of_one_host
        # In the order of their beginning.
        self._begun: dict[GroupKey, tuple[str, float]] = {}
        self._count: Counter[str] = Counter()

    def begin(self, key: GroupKey, host: str, now_seconds: float) -> bool:
        """Take a place of this address's share for the name; False where it has none left."""
        if self._most_of_one_host is None or key in self._begun:
            return True
        self._let_go_of_old(now_seconds)
        if self._count[host] >= self._most_of_one_host:
            return False
        self._begun[key] = (host, now_seconds)
        self._count[host] += 1
        return True

    def give_back(self, key: GroupKey) -> None:
        """A broker has registered under the name, or nothing became durable."""
        host, _ = self._begun.pop(key, ("", 0.0))
        if self._count[host] > 1:
            self._count[host] -= 1
        else:
            del self._count[host]

    def _let_go_of_old(self, now_seconds: float) -> None:
        while self._begun:
            key, (_, begun_seconds) = next(iter(self._begun.items()))
            if now_seconds < begun_seconds + KEPT_SECONDS:
                return
            self.give_back(key)
