"""Traces of a change of master: observations in, next effects out (`controller_core/change.py`).

The blocks are those of `trace_language.py`. A trace begins with `group master=3 epoch=6 members=1,2,3`. Then:

* `begin kind=Switchover phase=Quieting from=3 restore=2`, `elect kind=Failover` (`to=1`, `unfenced=true`), `renew slave=2`:
  decided by the real step, in the plane `plane-0`; the drawing is the record's entry of the change;
* `alive ids=1,2`, `acting ids=3` (their 907 answers that they are master), `fenced`, `heard`,
  `over in the pod` (the fence in the old master's pod kills it before an election): observations;
* `done <effect>`, `fails <effect>`: a started effect ends, `later seconds=0.3`: time passes;
* `taken over`: another plane continues, without observations; `told`: the change's end waits for its incident.

The drawing lists the effects that start, one a line, and new states: `1004 tells the new state`, `settled`.

To redraw after an intended change: `python -m tests.core.change_language tests/core/traces/change_*.txt`.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from controller_core.change import (
    CatchUp,
    Commit,
    Effect,
    Ended,
    Fence,
    Forget,
    GiveUp,
    Level,
    Observed,
    Pace,
    Point,
    Probe,
    Prove,
    Quiet,
    Tell,
    Unregister,
    next_effects,
)
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, LiveReplica, Phase, Replica, Restore
from controller_core.requests import BeginChange, ElectMaster, EndChange, Ending, RenewMaster, Request, TakeOverChange
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.core.trace_language import TraceError, read_ids, rewrite

NAME, PLANE = "bn", "plane-0"


@dataclass
class ChangeRunner:
    """One plane that carries out a change, and its clock."""

    record: BrokerGroupRecord = field(default_factory=lambda: BrokerGroupRecord("cl", NAME))
    seen: Observed = field(default_factory=lambda: Observed(alive=frozenset()))
    now_seconds: float = 100.0
    plane: str = PLANE
    begun: dict[Effect, float] = field(default_factory=dict)
    ended: dict[Effect, Ended] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def run(self, command: str) -> str:  # noqa: PLR0911, PLR0912, C901 - a table of commands
        """Run a command and draw its effects."""
        verb, *words = command.split()
        if verb in ("done", "fails"):
            return self._end(command.removeprefix(verb).strip(), confirmed=verb == "done")
        if command == "taken over":
            return self._take_over()
        if command == "over in the pod":
            self.seen = replace(self.seen, dead_by_pod_fence=True)
            return self._next()
        if command == "told":
            return self._decide(self._ended(Ending.TOLD))
        given = dict(word.split("=", maxsplit=1) for word in words)
        match verb:
            case "group":
                return self._group(given)
            case "begin":
                return self._begin(given)
            case "elect":
                return self._elect(given)
            case "renew":
                return self._renew(given)
            case "alive":
                self.seen = replace(self.seen, alive=read_ids(given["ids"]))
            case "acting":
                self.seen = replace(self.seen, acting=read_ids(given.get("ids", "")))
            case "fenced":
                self.seen = replace(self.seen, fenced=True)
            case "heard":
                self.seen = replace(self.seen, heard=True)
            case "later":
                self.now_seconds += float(given["seconds"])
            case _:
                raise TraceError(f"command {command!r}, expected one of the list in {__name__}")
        return self._next()

    def _group(self, given: dict[str, str]) -> str:
        members = read_ids(given["members"])
        self.record = BrokerGroupRecord(
            "cl",
            NAME,
            next_broker_id=max(members) + 1,
            replicas={one: Replica(one, f"{one};1", f"10.0.0.{one}:10911", registered=True) for one in members},
            master_broker_id=int(given["master"]) if "master" in given else None,
            master_epoch=int(given["epoch"]),
            sync_state_set=read_ids(given["set"]) if "set" in given else members,
            sync_state_set_epoch=int(given["epoch"]),
        )
        self.seen = Observed(alive=members)
        self.begun, self.ended, self.said, self.plane = {}, {}, set(), PLANE
        return "ok"

    def _begin(self, given: dict[str, str]) -> str:
        old = int(given["from"])
        change = Change(
            id=0,
            kind=ChangeKind(given["kind"]),
            phase=Phase(given["phase"]),
            carried_out_by=self.plane,
            from_broker_id=old,
            restore=Restore(broker_id=old, min_in_sync_replicas=int(given["restore"])) if "restore" in given else None,
        )
        self.seen = replace(self.seen, acting=frozenset())
        return self._decide(BeginChange(change=change, master_epoch=self.record.master_epoch))

    def _elect(self, given: dict[str, str]) -> str:
        to = int(given["to"]) if "to" in given else None
        moved = {self.record.master_broker_id} if self.record.master_broker_id is not None else set()
        request = ElectMaster(
            broker_id=to,
            designate_elect=to is not None,
            passed_over=frozenset(moved),
            unfenced=given.get("unfenced") == "true",
            plan=self._telling(ChangeKind(given["kind"])),
        )
        self.seen = replace(self.seen, acting=self.seen.acting or frozenset())
        if Commit() in self.begun:
            self.ended[Commit()] = Ended(self.now_seconds, confirmed=True)
        return self._decide(request)

    def _renew(self, given: dict[str, str]) -> str:
        request = RenewMaster(broker_id=self.record.master_broker_id or 0, master_epoch=self.record.master_epoch)
        if "without" in given:
            return self._decide(replace(request, without=read_ids(given["without"])))
        plan = replace(self._telling(ChangeKind.CURE), slave=int(given["slave"]))
        return self._decide(replace(request, epochs=2, plan=plan))

    def _telling(self, kind: ChangeKind) -> Change:
        return Change(id=0, kind=kind, phase=Phase.TELLING, carried_out_by=self.plane)

    def _take_over(self) -> str:
        assert self.record.change is not None
        self.plane = "plane-1"
        self.begun, self.ended, self.said = {}, {}, set()
        self.seen = Observed(alive=self.seen.alive, takes_over=True, since_seconds=self.now_seconds)
        return self._decide(TakeOverChange(change=self.record.change, carried_out_by=self.plane))

    def _decide(self, request: Request) -> str:
        live = {
            one: LiveReplica(one, self.record.master_epoch, 1000, address=self.record.address_of(one) or "")
            for one in self.seen.alive
        }
        before = self.record.change.phase if self.record.change is not None else None
        decision = step(self.record, request, live, ControllerSettings())
        assert decision.record is not None
        self.record = decision.record
        change = self.record.change
        if change is not None and change.phase is not before:
            self.seen = replace(self.seen, since_seconds=self.now_seconds)
        drawn = change.describe() if change is not None else "no change under way"
        return f"{drawn}\n{self._next()}"

    def _end(self, name: str, *, confirmed: bool) -> str:
        effect = next((one for one in self.begun if draw(one) == name and one not in self.ended), None)
        if effect is None:
            raise TraceError(
                f"{name!r} ends, expected one of {[draw(one) for one in self.begun if one not in self.ended]}"
            )
        self.ended[effect] = Ended(self.now_seconds, confirmed=confirmed)
        if isinstance(effect, Tell) and confirmed and not effect.of_another:
            self.seen = replace(self.seen, told=self.seen.told | {effect.broker_id})
        if confirmed and isinstance(effect, GiveUp):
            return self._decide(self._ended(Ending.GIVEN_UP))
        if confirmed and isinstance(effect, Forget):
            return self._decide(self._ended(Ending.OVER))
        return self._next()

    def _ended(self, how: Ending) -> EndChange:
        return EndChange(change_id=self.record.change_id, carried_out_by=self.plane, how=how)

    def _next(self) -> str:
        seen = replace(self.seen, begun=self.begun, ended=self.ended)
        found = next_effects(self.record, seen, self.now_seconds, Pace())
        lines = [f"-> {draw(one)}" for one in found.effects]
        self.begun |= dict.fromkeys(found.effects, self.now_seconds)
        for word, is_so in (("1004 tells the new state", found.releases), ("settled", found.settled)):
            if is_so and self.record.change is not None and word not in self.said:
                self.said.add(word)
                lines.append(word)
        return "\n".join(lines) or "nothing yet"


def draw(effect: Effect) -> str:  # noqa: PLR0911, PLR0912, C901 - a table of effects
    """Return an effect's name in a trace: its code on the wire if it has one."""
    match effect:
        case Fence(broker_id):
            return f"fence {broker_id}"
        case Quiet(broker_id):
            return f"25 to {broker_id}: minInSyncReplicas=99"
        case Level(broker_id):
            return f"907 to {broker_id} until its slaves are level"
        case CatchUp(broker_id):
            return f"907 to {broker_id} once more"
        case Commit():
            return "commit the election"
        case Probe(broker_ids):
            return f"907 to {','.join(map(str, sorted(broker_ids)))}"
        case Unregister(broker_id, early):
            return f"104 of {broker_id}{' early' if early else ''}"
        case Tell(broker_id, epoch, of_another):
            return f"1008 to {broker_id} epoch {epoch}{' of another master' if of_another else ''}"
        case Point(broker_id, nowhere):
            return f"906 to {broker_id}{' nowhere' if nowhere else ''}"
        case Prove(broker_id):
            return f"907 to {broker_id}: master?"
        case Restore(broker_id, minimum):
            return f"25 to {broker_id}: minInSyncReplicas={minimum}"
        case GiveUp():
            return "give up"
        case Forget():
            return "end the change"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name), ChangeRunner().run)
