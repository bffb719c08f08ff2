"""What one deployment of `make e2e` has shown, and whether it is ok."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.node.authority import BLOCKS

if TYPE_CHECKING:
    from tests.node.deployments import Deployment

# What a deployment that may lose messages may lose: those that were acknowledged this long before the fault.
NEWEST_SECONDS = 5.0


@dataclass
class Line:
    """What was seen of one deployment."""

    name: str
    ready_s: float | None = None
    sent: int = 0
    consumed: int = 0
    load: int = 0
    # Of the clients' messages; of the load's, when each of the lost ones was acknowledged, in seconds before the fault.
    lost: int = 0
    lost_before_fault_s: list[float] = field(default_factory=list)
    # Longest time until the gRPC client had sent and received a few messages, by fault.
    proxy_s: dict[str, float] = field(default_factory=dict)
    # Longest gap at the load's client, by fault.
    gaps_s: dict[str, float] = field(default_factory=dict)
    # By step of another authority: how long it took, and the longest time without an acknowledgement of Java's client.
    step_s: dict[str, float] = field(default_factory=dict)
    silent_s: dict[str, float] = field(default_factory=dict)
    # By step, the longest time in which no NameServer had a broker; looked at once a second.
    unlisted_s: dict[str, float] = field(default_factory=dict)
    # From the deletion of the master's pod, which cannot start again, until everything has been read.
    read_while_away_s: float | None = None
    deleted_s: float | None = None
    left: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)


def verdict(deployment: Deployment, line: Line) -> dict[str, Any]:
    """Return its line of JSON. It is ok only if it was ready, used, broken as planned and deleted clean, and lost nothing that it
    promises to keep.
    """
    why, worst = list(line.why), max(line.gaps_s.values(), default=None)
    if line.ready_s is None:
        why.append("never ready")
    if line.sent == 0:
        why.append("no message was acknowledged: expected some")
    if line.lost:
        why.append(f"{line.lost} acknowledged messages were not there afterwards")
    if lost := [round(one, 1) for one in line.lost_before_fault_s if not deployment.may_lose or one > NEWEST_SECONDS]:
        why.append(f"{len(lost)} messages of the load, acknowledged up to {max(lost)} s before the fault, are lost")
    if missing := [fault for fault in deployment.faults if fault not in line.gaps_s]:
        why.append(f"not measured: {', '.join(missing)}")
    if deployment.reads_while_away and line.read_while_away_s is None:
        why.append("not read while the master's pod was away")
    why += of_the_steps(deployment, line)
    if line.deleted_s is None:
        why.append("not deleted to the end")
    if line.left:
        why.append(f"{len(line.left)} objects are left: {', '.join(line.left[:5])}")
    return {
        "name": deployment.name,
        "ready_s": line.ready_s,
        "sent": line.sent,
        "consumed": line.consumed,
        "load": line.load,
        "failover_s": worst if deployment.fails_over else None,
        "back_s": None if deployment.fails_over else worst,
        "gaps_s": line.gaps_s,
        "proxy_s": line.proxy_s,
        "step_s": line.step_s,
        "silent_s": line.silent_s,
        "unlisted_s": line.unlisted_s,
        "read_while_away_s": line.read_while_away_s,
        "lost": line.lost + len(line.lost_before_fault_s),
        "deleted_s": line.deleted_s,
        "ok": not why,
        "why": why,
    }


def of_the_steps(deployment: Deployment, line: Line) -> list[str]:
    """Return what is amiss with the steps to another authority."""
    why = []
    if deployment.new_authority and (missing := [step for step in BLOCKS if step not in line.step_s]):
        why.append(f"steps not taken: {', '.join(missing)}")
    if bare := {step: seconds for step, seconds in line.unlisted_s.items() if seconds}:
        why.append(f"no NameServer had a broker, in seconds by step: {bare}")
    return why
