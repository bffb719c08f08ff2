"""Data-driven traces in the style of etcd-io/raft: readable text files with expected drawings.

A trace is a list of blocks. A block is comment lines, a command, optionally Java's answer, `----`, and the expected
drawing up to an empty line:

    # Nothing is reserved by asking.
    1012
    java: 0 clusterName=cl brokerName=bn nextBrokerId=1
    ----
    0 clusterName=cl brokerName=bn nextBrokerId=1
    why: 1 is next

Requests are named by their code (`reserve`, `remove`, `renew`, `report` and `ahead` are ours; `report` reports the
heartbeats of the given ids, or of all). After a request the drawing is: code and answer, the remark, the reason, and the
record if it changed. The other commands: `heartbeat id=1 epoch=0 maxOffset=10`, `silent id=1` (the live table), `stale`
(all reports are older than a loss), `settings key=value`, `record` (draw it), `undo` (undo the last step, to continue from
Java's state), `new` (start with an empty world).

If a block has Java's answer, ours must be the same, or the block's comment must contain `deviates, rule <n>` (or
`deviates, Java's bug`); a block with such a comment and an equal answer fails as well.

To redraw after an intended change: `python -m tests.core.trace_language tests/core/traces/*.txt`, then read the diff.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller_core.decision import Decision, ReplicaStanding, SyncStateSetBody
from controller_core.holdings import demand_of, told_mark
from controller_core.model import DEFAULT_ELECTION_PRIORITY, BrokerGroupRecord, LiveReplica, Mark
from controller_core.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    Holding,
    RegisterBroker,
    RemoveMember,
    RenewMaster,
    ReportAhead,
    ReportHoldings,
    Request,
    ReserveBrokerId,
    RestoreGroup,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.core.invariants import applied

DEVIATION = re.compile(r"deviates, (rule \d|Java's bug)")


class TraceError(ValueError):
    """A trace has a syntax error: the message names file, line and the expected syntax."""


@dataclass(frozen=True)
class Block:
    """One command and its expected drawing."""

    line: int
    comment: str
    command: str
    java: str | None
    expected: str

    @property
    def names_a_deviation(self) -> bool:
        return DEVIATION.search(self.comment) is not None


@dataclass
class TraceRunner:
    """The world of one trace: a record, the live table, the settings."""

    record: BrokerGroupRecord | None = None
    live: dict[int, LiveReplica] = field(default_factory=dict)
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    previous: BrokerGroupRecord | None = None

    def run(self, command: str) -> str:  # noqa: PLR0911 - a table of commands
        """Run a command and draw the outcome."""
        verb, *words = command.split()
        arguments = dict(word.split("=", maxsplit=1) for word in words)
        match verb:
            case "new":
                self.__init__()  # type: ignore[misc]
                return "ok"
            case "undo":
                self.record = self.previous
                return self._draw_record()
            case "record":
                return self._draw_record()
            case "settings":
                return self._change_settings(arguments)
            case "heartbeat":
                return self._heartbeat(arguments)
            case "stale":
                self.live = {key: one._replace(fresh=False) for key, one in self.live.items()}
                return self._draw_live()
            case "report":
                return self._report(arguments)
            case "silent":
                del self.live[int(arguments["id"])]
                return self._draw_live()
        return self._step(_read_request(verb, arguments))

    def _step(self, request: Request) -> str:
        decision = step(self.record, request, self.live, self.settings)
        assert applied(self.record, decision) == decision.record
        self.previous = self.record
        left_out = isinstance(request, GetSyncStateData) and decision.answer is None
        lines = [f"{int(decision.code)} {'left out of the table' if left_out else draw_answer(decision)}".rstrip()]
        if decision.remark is not None:
            lines.append(f"remark: {decision.remark}")
        lines.append(f"why: {decision.why}")
        self.record = decision.record
        if decision.changed:
            lines.append(self._draw_record())
        return "\n".join(lines)

    def _report(self, arguments: dict[str, str]) -> str:
        wanted = read_ids(arguments.get("ids", "")) or self.live.keys()
        told = [self.live[broker_id] for broker_id in sorted(wanted)]
        holdings = tuple(
            Holding(
                broker_id=one.broker_id,
                epoch=one.epoch,
                max_offset=one.max_offset,
                known=Mark(
                    one.broker_id, int(arguments.get("knownEpoch", "-1")), int(arguments.get("knownOffset", "-1"))
                ),
                sure=told_mark(one),
                seen=demand_of(self.record, one.broker_id),
            )
            for one in told
        )
        return self._step(ReportHoldings(holdings=holdings))

    def _heartbeat(self, arguments: dict[str, str]) -> str:
        broker_id = int(arguments["id"])
        self.live[broker_id] = LiveReplica(
            broker_id=broker_id,
            epoch=int(arguments.get("epoch", "-1")),
            max_offset=int(arguments.get("maxOffset", "-1")),
            confirm_offset=int(arguments.get("confirmOffset", "-1")),
            election_priority=int(arguments.get("priority", DEFAULT_ELECTION_PRIORITY)),
        )
        return self._draw_live()

    def _change_settings(self, arguments: dict[str, str]) -> str:
        readers: dict[str, Callable[[str], Any]] = {
            "unclean_election_allowed": lambda text: text == "true",
            "shrink_floor": lambda text: text == "true",
            "masters_shrink_first": lambda text: text == "true",
            "min_in_sync_replicas": int,
            "keep_no_floor": read_ids,
            "expected_replicas": int,
            "accepted_epoch": int,
            "max_epoch_jump": int,
            "max_ids_of_restored": int,
            "election_policy": str,
            "preferred_zones": lambda text: tuple(part for part in text.split(",") if part),
            "zones": lambda text: {int(k): zone for k, zone in (p.split(":") for p in text.split(",") if p)},
            "never_elect": read_ids,
            "election_priorities": lambda text: {
                int(k): int(v) for k, v in (p.split(":") for p in text.split(",") if p)
            },
        }
        changes = {name: readers[name](text) for name, text in arguments.items()}
        self.settings = dataclasses.replace(self.settings, **changes)
        return "ok"

    def _draw_live(self) -> str:
        drawn = [f"{one.broker_id}(epoch {one.epoch}, offset {one.max_offset})" for one in self.live.values()]
        return f"alive: {', '.join(sorted(drawn)) or 'nobody'}"

    def _draw_record(self) -> str:
        return "no record" if self.record is None else self.record.describe()


def read_ids(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part)


def _read_int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _read_request(verb: str, arguments: dict[str, str]) -> Request:  # noqa: PLR0911, PLR0912, C901 - a table of requests
    """Read a request; a missing field gets Java's default for it."""
    given = arguments.get
    cluster, name = given("cluster", "cl"), given("name", "bn")
    match verb:
        case "1012":
            return GetNextBrokerId(
                cluster_name=cluster, broker_name=None if name == "null" else name, requester=given("requester")
            )
        case "1013":
            return ApplyBrokerId(
                cluster_name=cluster,
                broker_name=name,
                applied_broker_id=_read_int(given("id")),
                register_check_code=given("check"),
                requester=given("requester"),
            )
        case "1003":
            return RegisterBroker(
                cluster_name=cluster,
                broker_name=name,
                broker_id=_read_int(given("id")),
                broker_address=given("address"),
                requester=given("requester"),
            )
        case "1002":
            return ElectMaster(
                broker_id=_read_int(given("id")),
                designate_elect=given("designate") == "true",
                passed_over=read_ids(given("passedOver", "")),
                incumbent=_read_int(given("incumbent")),
                unclean=given("unclean") == "true",
                unfenced=given("unfenced") == "true",
                set_in_doubt=given("inDoubt") == "true",
            )
        case "1001":
            return AlterSyncStateSet(
                master_broker_id=_read_int(given("master")),
                master_epoch=_read_int(given("epoch")),
                sync_state_set=read_ids(given("set", "")),
                sync_state_set_epoch=int(given("setEpoch", "0")),
                said_again=given("saidAgain") == "true",
            )
        case "1004":
            return GetReplicaInfo(broker_name=None if name == "null" else name)
        case "1006":
            return GetSyncStateData(broker_name=name)
        case "1011":
            return CleanBrokerData(
                broker_name=name,
                broker_controller_ids_to_clean=given("ids"),
                is_clean_living_broker=given("living") == "true",
            )
        case "remove":
            return RemoveMember(broker_id=int(arguments["id"]))
        case "renew":
            return RenewMaster(
                broker_id=int(arguments["id"]),
                master_epoch=int(arguments["epoch"]),
                epochs=int(given("epochs", "1")),
                without=read_ids(given("without", "")),
            )
        case "ahead":
            return ReportAhead(
                broker_id=int(given("id", "0")),
                master_epoch=int(given("epoch", "0")),
                sync_state_set_epoch=int(given("setEpoch", "0")),
            )
        case "restore":
            return RestoreGroup(
                cluster_name=cluster,
                broker_name=name,
                reserved_for=given("for", ""),
                backup=given("backup", ""),
                broker_id=int(arguments["id"]),
                master_epoch=int(arguments["epoch"]),
                mark=Mark(int(arguments["id"]), int(arguments["heldEpoch"]), int(arguments["heldOffset"])),
            )
        case "reserve":
            return ReserveBrokerId(
                cluster_name=cluster, broker_name=name, reserved_for=given("for", ""), broker_id=_read_int(given("id"))
            )
    raise TraceError(
        f"command {verb!r}, expected a request code or one of heartbeat, silent, settings, record, undo, new"
    )


def draw_answer(decision: Decision) -> str:
    """Draw the answer's fields by their wire names, without those that Java omits."""
    if decision.answer is None:
        return ""
    values = [(one.name, getattr(decision.answer, one.name)) for one in dataclasses.fields(decision.answer)]
    return " ".join(f"{_camel(name)}={_draw_value(value)}" for name, value in values if value is not None)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _draw_value(value: object) -> str:  # noqa: PLR0911 - a table of types
    if isinstance(value, frozenset):
        return "{" + ",".join(str(one) for one in sorted(value)) + "}"
    if isinstance(value, SyncStateSetBody):
        return f"{_draw_value(value.sync_state_set)}@{value.sync_state_set_epoch}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{one}" for key, one in value.items()) + "}"
    if isinstance(value, ReplicaStanding):
        return f"{value.broker_id}/{value.broker_address or '-'}/{'alive' if value.alive else 'dead'}"
    if isinstance(value, tuple):
        return "[" + ",".join(_draw_value(one) for one in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def read_trace(path: Path) -> list[Block]:
    """Split a trace into its blocks."""
    blocks: list[Block] = []
    comment: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    position = 0
    while position < len(lines):
        line = lines[position]
        if not line.strip():
            comment = []
        elif line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        else:
            block, position = _read_block(path, lines, position, " ".join(comment))
            blocks.append(block)
            comment = []
        position += 1
    return blocks


def _read_block(path: Path, lines: list[str], start: int, comment: str) -> tuple[Block, int]:
    position = start + 1
    java = None
    if position < len(lines) and lines[position].startswith("java:"):
        java = lines[position].removeprefix("java:").strip()
        position += 1
    if position >= len(lines) or lines[position] != "----":
        raise TraceError(f"{path.name}:{position + 1}: expected ---- after the command {lines[start]!r}")
    end = position + 1
    while end < len(lines) and lines[end].strip():
        end += 1
    expected = "\n".join(lines[position + 1 : end])
    return Block(line=start + 1, comment=comment, command=lines[start], java=java, expected=expected), end


def rewrite(path: Path, run: Callable[[str], str]) -> None:
    """Replace every drawing with the current outcome. Commands, comments and Java's answers stay."""
    output: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    drawn = {block.line: run(block.command) for block in read_trace(path)}
    position = 0
    while position < len(lines):
        output.append(lines[position])
        if position + 1 in drawn:
            result = drawn[position + 1]
            while lines[position] != "----":
                position += 1
                output.append(lines[position])
            output.append(result)
            while position + 1 < len(lines) and lines[position + 1].strip():
                position += 1
        position += 1
    path.write_text("\n".join(output) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name), TraceRunner().run)
