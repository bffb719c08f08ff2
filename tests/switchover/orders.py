"""Checks the order of a switchover in the Java brokers' own logs.

The order is that of tests/core/traces/change_switchover.txt, as far as brokers see it. With `LOGBACK` a broker writes its log
with milliseconds to one file; all brokers of the lane have the same clock. Lines of one broker are in the order of its file. Of
two brokers' lines within one millisecond neither counts as first, so they contradict no order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

LOG_NAME = "order.log"
LOGBACK = f"""<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${{user.home}}/{LOG_NAME}</file>
    <encoder><pattern>%d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %t - %m%n</pattern></encoder>
  </appender>
  <appender name="order" class="ch.qos.logback.classic.AsyncAppender">
    <discardingThreshold>0</discardingThreshold>
    <appender-ref ref="file"/>
  </appender>
  <logger name="RocketmqBroker" level="INFO"/>
  <logger name="RocketmqStore" level="INFO"/>
  <root level="WARN"><appender-ref ref="order"/></root>
</configuration>
"""
_LINE = re.compile(r"(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \w+ \S+ - (?P<text>.*)")
_EVENTS = {
    "minimum": re.compile(r"updateBrokerConfig, new config: .*\bminInSyncReplicas=(?P<value>\d+)"),
    "begins": re.compile(r"Begin to change to (?P<value>master|slave), .*[eE]poch[:=](?P<epoch>\d+)"),
    "changed": re.compile(r"Change ha to (?P<value>master|slave) success, .*newMasterEpoch:(?P<epoch>\d+)"),
    "points": re.compile(r"update master ha address, OLD: \S+ NEW: (?P<value>\S+)"),
}
# The operator's values: a minimum that no set reaches, an HA address without a listener.
NO_ACKNOWLEDGEMENT, NOWHERE = "99", "127.0.0.1:9"
_NO_ADDRESS = "null"


@dataclass(frozen=True)
class Entry:
    """One line of a broker's log about its role. `epoch` is 0 if the line has none."""

    broker_id: int
    number: int
    at: str
    event: str
    value: str
    epoch: int = 0

    def is_after(self, other: Entry) -> bool:
        """Whether this line certainly came after the other one."""
        if self.broker_id == other.broker_id:
            return self.number > other.number
        return self.at > other.at

    def __str__(self) -> str:
        epoch = f" (epoch {self.epoch})" if self.epoch else ""
        return f"broker {self.broker_id} {self.event} {self.value}{epoch} at {self.at[11:]}"


@dataclass(frozen=True)
class Move:
    """A switchover: its new epoch, the masters before and after, and each member's host."""

    epoch: int
    old: int
    new: int
    hosts: Mapping[int, str]


@dataclass
class BrokerLogs:
    """The order logs of a group's pods under a kubelet's folder. `read` returns the lines since the last read."""

    pods: Path
    group: str
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> dict[int, list[Entry]]:
        """Return the entries by broker."""
        found: dict[int, list[Entry]] = {}
        for file in sorted(self.pods.glob(f"*_{self.group}-*_*/**/{LOG_NAME}")):
            broker_id = int(file.relative_to(self.pods).parts[0].split("_")[1].rpartition("-")[2])
            with file.open("rb") as log:
                log.seek(self._read.get(file, 0))
                text = log.read()
                self._read[file] = log.tell()
            found.setdefault(broker_id, []).extend(
                entries(broker_id, text.decode("utf-8", errors="replace").splitlines())
            )
        return found


def entries(broker_id: int, lines: Iterable[str]) -> Iterator[Entry]:
    """Yield the entries of a broker's log about its role."""
    for number, line in enumerate(lines):
        if (parts := _LINE.match(line)) is None:
            continue
        for event, pattern in _EVENTS.items():
            if (found := pattern.search(parts["text"])) is not None:
                said = found.groupdict()
                yield Entry(broker_id, number, parts["at"], event, said["value"], int(said.get("epoch") or 0))


def complaints(logs: Mapping[int, Iterable[Entry]], move: Move) -> list[str]:
    """Return contradictions to a switchover's order, and lines missing from the logs; empty if the order holds."""
    seen = _Seen({broker_id: list(found) for broker_id, found in logs.items()}, move)
    old, new = move.old, move.new
    others = sorted(set(move.hosts) - {old})
    slaves = sorted(set(move.hosts) - {new})
    quiet, left = seen.began(old), seen.changed(old)
    seen.expect_before(seen.quiet(), [seen.aside(one) for one in others])
    for one in others:
        seen.expect_before(seen.aside(one), [quiet])
        seen.expect_before(left, [seen.began(one)])
    for one in slaves:
        seen.expect_before(seen.changed(new), [seen.pointed(one)])
    seen.expect_before(left, [seen.restored()])
    return seen.wrong


@dataclass
class _Seen:
    """Finds the lines of one switchover. Missing or unexpected lines go to `wrong`."""

    logs: Mapping[int, list[Entry]]
    move: Move
    wrong: list[str] = field(default_factory=list)

    def expect_before(self, first: Entry | None, then: Iterable[Entry | None]) -> None:
        for one in then:
            if first is not None and one is not None and first.is_after(one):
                self.wrong.append(f"{first} came after {one}")

    def quiet(self) -> Entry | None:
        """Find the old master's last minimum before its change: it acknowledges no sends any more."""
        began = self._first(self.move.old, "begins", lambda one: one.epoch == self.move.epoch)
        told = [
            one
            for one in self.logs.get(self.move.old, ())
            if one.event == "minimum" and began is not None and began.is_after(one)
        ]
        last = told[-1] if told else None
        if last is not None and last.value != NO_ACKNOWLEDGEMENT:
            self.wrong.append(f"{last} before its change: it could acknowledge again")
        return self._needed(last, self.move.old, "was told to acknowledge nothing")

    def aside(self, broker_id: int) -> Entry | None:
        """Find the 906 with an address without a listener: the slave does not dial the old master again."""
        return self._needed(
            self._first(broker_id, "points", lambda one: one.value == NOWHERE), broker_id, "was pointed nowhere"
        )

    def began(self, broker_id: int) -> Entry | None:
        """Find the first line of the change of role itself, which 1008 and 1004 both cause."""
        return self._change(broker_id, "begins", "began the change")

    def changed(self, broker_id: int) -> Entry | None:
        return self._change(broker_id, "changed", "ended the change")

    def _change(self, broker_id: int, event: str, what: str) -> Entry | None:
        found = self._first(broker_id, event, lambda one: one.epoch == self.move.epoch)
        role = "master" if broker_id == self.move.new else "slave"
        if found is not None and found.value != role and f"{found}: expected {role}" not in self.wrong:
            self.wrong.append(f"{found}: expected {role}")
        return self._needed(found, broker_id, what)

    def pointed(self, broker_id: int) -> Entry | None:
        """Find the first address that a slave takes after its change, by 906 or from the NameServer."""
        changed = self.changed(broker_id)
        found = self._first(
            broker_id,
            "points",
            lambda one: changed is not None and one.is_after(changed) and one.value != _NO_ADDRESS,
        )
        if found is not None and found.value.rpartition(":")[0] != self.move.hosts[self.move.new]:
            self.wrong.append(f"{found}: expected the new master {self.move.hosts[self.move.new]}")
        return self._needed(found, broker_id, "was pointed to the new master")

    def restored(self) -> Entry | None:
        """Find the restored minimum of the old master."""
        quiet = self.quiet()
        found = self._first(
            self.move.old,
            "minimum",
            lambda one: quiet is not None and one.is_after(quiet) and one.value != NO_ACKNOWLEDGEMENT,
        )
        return self._needed(found, self.move.old, "got its minInSyncReplicas back")

    def _first(self, broker_id: int, event: str, fits: Callable[[Entry], bool]) -> Entry | None:
        return next((one for one in self.logs.get(broker_id, ()) if one.event == event and fits(one)), None)

    def _needed(self, found: Entry | None, broker_id: int, what: str) -> Entry | None:
        missing = f"no line of broker {broker_id} that it {what}"
        if found is None and missing not in self.wrong:
            self.wrong.append(missing)
        return found
