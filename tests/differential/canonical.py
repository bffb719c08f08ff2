"""Make answers of two controllers comparable: the sequence's names and addresses, sorted sets, epochs on one scale.

Nothing else is changed. Epochs differ only after a listed deviation of kind SHIFT (Java raises three times, ours once):
from then on Java's are shifted by that difference, in its answers and in requests to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.command import RemotingCommand, SerializeType
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import load_json, quote_number_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EPOCH_FIELDS = frozenset({"masterEpoch"})
SET_EPOCH_FIELDS = frozenset({"syncStateSetEpoch", "newSyncStateSetEpoch"})
IN_REMARK = re.compile(
    r"current (?P<which>master|syncStateSet) epoch is:\{(?P<now>-?\d+)\}, not \{(?P<said>-?\d+|null)\}"
)
SHIFTED_BELOW = 1_000_000
"""Epochs in requests that are further from zero are no epochs of a group, but nonsense that is sent as it is."""


@dataclass(frozen=True)
class Answer:
    """A canonical answer. `notes` are peculiarities of the encoding that no client notices."""

    code: int
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: Any = None
    notes: frozenset[str] = frozenset()

    def draw(self) -> str:
        """One line for a report."""
        fields = " ".join(f"{key}={value}" for key, value in sorted((self.fields or {}).items()))
        body = "" if self.body is None else f"body={self.body}"
        remark = "" if self.remark is None else f"remark={self.remark!r}"
        return " ".join(part for part in (str(self.code), fields, body, remark) if part)


@dataclass(frozen=True)
class Shift:
    """The number of epochs by which Java is ahead of ours."""

    epoch: int = 0
    set_epoch: int = 0


@dataclass(frozen=True)
class Standing:
    """One member as 1006 shows it."""

    address: str | None
    alive: bool
    in_sync: bool


@dataclass(frozen=True)
class GroupState:
    """A group as 1006 shows it; an unknown one has no members."""

    master: int | None = None
    master_address: str | None = None
    epoch: int = 0
    set_epoch: int = 0
    members: dict[int, Standing] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return bool(self.members)

    @property
    def sync_state_set(self) -> frozenset[int]:
        return frozenset(one for one, standing in self.members.items() if standing.in_sync)

    @property
    def alive(self) -> frozenset[int]:
        return frozenset(one for one, standing in self.members.items() if standing.alive)

    def is_alive(self, broker_id: int | None) -> bool:
        return broker_id is not None and broker_id in self.alive

    def draw(self) -> str:
        """One line for a report."""
        if not self.known:
            return "unknown group"
        members = " ".join(
            f"{one}/{standing.address}/{'in' if standing.in_sync else 'out'}/{'alive' if standing.alive else 'dead'}"
            for one, standing in sorted(self.members.items())
        )
        return f"master={self.master}@{self.master_address} epoch={self.epoch} setEpoch={self.set_epoch} {members}"


def canonical_answer(
    command: RemotingCommand,
    translate: Callable[[str], str],
    shift: Shift,
    shifts: Mapping[str, Shift] | None = None,
) -> Answer:
    """Return the answer without this side's own values. `shifts` are those of the groups in a table."""
    notes: set[str] = set()
    if command.serialize_type == SerializeType.ROCKETMQ:
        notes.add("binary header")
    fields = None
    if command.ext_fields is not None:
        fields = {
            key: _shifted_text(key, translate(value), command.code, shift) for key, value in command.ext_fields.items()
        }
    return Answer(
        code=command.code,
        remark=None if command.remark is None else _shift_remark(translate(command.remark), shift),
        fields=fields,
        body=_canonical_body(command.body, translate, shift, shifts or {}, notes),
        notes=frozenset(notes),
    )


def _shifted_text(key: str, text: str, code: int, shift: Shift) -> str:
    if key in EPOCH_FIELDS:
        return str(int(text) - shift.epoch)
    if key in SET_EPOCH_FIELDS and code in (0, 2011):
        return str(int(text) - shift.set_epoch)
    return text


def _shift_remark(remark: str, shift: Shift) -> str:
    """Shift back the two epochs of a refusal's text: the controller's, and the request's, which was shifted on sending."""

    def shifted(match: re.Match[str]) -> str:
        by = shift.epoch if match["which"] == "master" else shift.set_epoch
        said = match["said"] if match["said"] == "null" else str(unshifted(int(match["said"]), by))
        return f"current {match['which']} epoch is:{{{int(match['now']) - by}}}, not {{{said}}}"

    return IN_REMARK.sub(shifted, remark)


def shifted_request(text: str, by: int) -> str:
    """Return a request's epoch in Java's scale."""
    if re.fullmatch(r"-?\d{1,6}", text, re.ASCII) is None:
        return text
    return str(int(text) + by)


def unshifted(value: int, by: int) -> int:
    """The inverse of `shifted_request`."""
    return value - by if abs(value - by) < SHIFTED_BELOW else value


def _canonical_body(
    body: bytes | None,
    translate: Callable[[str], str],
    shift: Shift,
    shifts: Mapping[str, Shift],
    notes: set[str],
) -> Any:
    if body is None:
        return None
    text = translate(body.decode("utf-8", errors="replace")).encode()
    try:
        value = load_json(text)
    except BodyError:
        return text.decode()
    if quote_number_keys(text) != text:
        notes.add("unquoted keys")
    if isinstance(value, dict) and isinstance(value.get("replicasInfoTable"), dict):
        table = value["replicasInfoTable"]
        return {"replicasInfoTable": {name: _canonical_value(table[name], shifts.get(name, Shift())) for name in table}}
    return _canonical_value(value, shift)


def _canonical_value(value: Any, shift: Shift) -> Any:
    if isinstance(value, dict):
        return {key: _canonical_member(key, member, shift) for key, member in sorted(value.items())}
    if isinstance(value, list):
        return [_canonical_value(element, shift) for element in value]
    return value


def _canonical_member(key: str, value: Any, shift: Shift) -> Any:
    if key == "syncStateSet":
        return sorted(value)
    if key in ("inSyncReplicas", "notInSyncReplicas"):
        return sorted((_canonical_value(one, shift) for one in value), key=lambda one: int(one["brokerId"]))
    if key in EPOCH_FIELDS:
        return value - shift.epoch
    if key in SET_EPOCH_FIELDS:
        return value - shift.set_epoch
    return _canonical_value(value, shift)


def state_of(answer: Answer, name: str) -> GroupState:
    """Return the group's state from a canonical answer to 1006."""
    entry = (answer.body or {}).get("replicasInfoTable", {}).get(name)
    if entry is None:
        return GroupState()
    members = {
        int(one["brokerId"]): Standing(one.get("brokerAddress"), one["alive"], in_sync)
        for in_sync, key in ((True, "inSyncReplicas"), (False, "notInSyncReplicas"))
        for one in entry[key]
    }
    return GroupState(
        master=entry.get("masterBrokerId"),
        master_address=entry.get("masterAddress"),
        epoch=entry["masterEpoch"],
        set_epoch=entry["syncStateSetEpoch"],
        members=members,
    )


def shifted_state(state: GroupState, shift: Shift) -> GroupState:
    """Return the state with shifted epochs."""
    return replace(state, epoch=state.epoch - shift.epoch, set_epoch=state.set_epoch - shift.set_epoch)
