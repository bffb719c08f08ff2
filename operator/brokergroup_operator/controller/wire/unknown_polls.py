"""Polls (1004) that were answered with 2008, "unknown": the registration (1003) that follows one is of a process that runs.

A running broker registers on that answer alone, within milliseconds and on the same connection. If the group becomes known in
between (a BrokerGroup was orphaned and made anew), the 1003 would look like a new process of the recorded master, which ends its
mastership (safety rule 6). One answer stands for one registration: the next 1003 on the connection may be of a new process, for a
broker container starts its brokers again on the old connection.
"""

from __future__ import annotations

# A broker polls for one name, a container for a few dozen.
_MAX_NAMES_PER_CONNECTION = 100


class UnknownPolls:
    """The broker names that each connection was told to be unknown, and has not registered since."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}

    def told_unknown(self, connection_id: int, broker_name: str) -> None:
        """Note that a poll was answered with 2008."""
        names = self._names.setdefault(connection_id, set())
        if len(names) < _MAX_NAMES_PER_CONNECTION:
            names.add(broker_name)

    def registers_because_of_one(self, connection_id: int, broker_name: str) -> bool:
        """Whether a registration is the answer to such a poll. The poll counts once."""
        names = self._names.get(connection_id, set())
        if broker_name not in names:
            return False
        names.discard(broker_name)
        return True

    def connection_closed(self, connection_id: int) -> None:
        """Forget a connection."""
        self._names.pop(connection_id, None)
