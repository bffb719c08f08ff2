"""Play one sequence at both controllers, step by step: send, wait, compare, and name or report each difference."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from rocketmq_remoting.errors import RemotingError
from tests.differential.canonical import (
    Answer,
    GroupState,
    Shift,
    canonical_answer,
    shifted_state,
    state_of,
)
from tests.differential.cases import Case, Seen
from tests.differential.deviation_list import DEPOSED, DEVIATIONS
from tests.differential.deviations import After, Deviation
from tests.differential.endpoints import CANONICAL, Endpoints
from tests.differential.language import Step
from tests.differential.memory import LOWEST_PRIORITY, Memory, Report
from tests.differential.shapes import SHAPES
from tests.differential.sides import DEADLINE_SECONDS, Connections, JavaSide, OurSide, command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.command import RemotingCommand

WRITES = frozenset({"1001", "1002", "1003", "1011", "1013", "heartbeat", "close"})
# What may make ours elect in a group without a master: a member is heard, or one that had to be heard first is gone.
MAKE_OURS_ELECT = frozenset({"heartbeat", "close", "1011"})
JAVA_ELECTION_TRIES = 3
# After a close Java often does nothing (see the list of deviations); a longer wait each time would dominate the run.
JAVA_IS_STILL_SECONDS = 2.0
IN_ANOTHER_CLUSTER = "a-heartbeat-finds-its-group-by-name"
_prefixes = itertools.count(1)


@dataclass(frozen=True)
class Played:
    """A step as sent, with its answers and states."""

    step: Step
    java: Answer | None
    ours: Answer | None
    deviation: str | None = None


@dataclass(frozen=True)
class Difference:
    """A difference that no entry of the list explains."""

    case: Case
    what: str

    def __str__(self) -> str:
        lines = [f"{self.case.step}: {self.what}", f"  before: {self.case.before.draw()}"]
        for name, seen in (("java", self.case.java), ("ours", self.case.ours)):
            lines.append(f"  {name}: {seen.answer.draw() if seen.answer is not None else '(no request)'}")
            lines.append(f"        then {seen.state.draw()}")
        return "\n".join(lines)


@dataclass
class Outcome:
    """The result of a sequence."""

    steps: int = 0
    deviations: Counter[str] = field(default_factory=Counter)
    played: list[Played] = field(default_factory=list)
    difference: Difference | None = None
    failure: str | None = None
    ended_by: str | None = None


@dataclass
class GroupWorld:
    """One group of the sequence."""

    state: GroupState = field(default_factory=GroupState)
    memory: Memory = field(default_factory=Memory)
    shift: Shift = field(default_factory=Shift)


class Comparison:
    """The two controllers, for one sequence."""

    def __init__(self, java: JavaSide, ours: OurSide, *, deviations: Iterable[Deviation] = DEVIATIONS) -> None:
        self.prefix = f"d{next(_prefixes)}~"
        self._java, self._ours = java, ours
        self._deviations = tuple(deviations)
        self._connections = {"java": Connections(java.address), "ours": Connections(ours.address)}
        self.endpoints = Endpoints(self._records, self._log_of)
        self.groups: dict[str, GroupWorld] = {}
        self.outcome = Outcome()

    def _records(self) -> list[BrokerGroupRecord]:
        return [record for name in self.groups if (record := self._ours.record(self.prefix + name)) is not None]

    def _log_of(self, wire_name: str, broker_id: int) -> Report | None:
        return self.group(wire_name.removeprefix(self.prefix)).memory.logs.get(broker_id)

    @property
    def version(self) -> str:
        """Return the Java version."""
        return self._java.version

    def group(self, name: str) -> GroupWorld:
        return self.groups.setdefault(name, GroupWorld())

    async def close(self) -> None:
        """End all connections and brokers of the sequence; only its records remain."""
        for connections in self._connections.values():
            await connections.close_all()
        await self.endpoints.stop()

    def _memories(self) -> dict[str, Memory]:
        return {name: world.memory for name, world in self.groups.items()}

    async def play_all(self, steps: Iterable[Step]) -> None:
        """Play a sequence until its end, a difference, a deviation that ends it, or a controller that stops answering."""
        try:
            for step in steps:
                if not await self.play(step):
                    return
        except (AssertionError, RemotingError, OSError) as error:
            self.outcome.failure = f"{type(error).__name__}: {error}"
        finally:
            await self.close()

    # ---- one step

    async def play(self, step: Step) -> bool:
        """Send one step to both. False when the sequence ends here, by a difference or by a deviation."""
        world = self.group(step.name or "")
        relative = {"epoch": world.state.epoch, "setEpoch": world.state.set_epoch}
        step = step.resolve(relative)
        await self.endpoints.prepare(str(step))
        before, logs = world.state, dict(world.memory.logs)
        await self._note_log(step, world)
        java, ours = await (self._close(step, world) if step.verb == "close" else self._ask_both(step, world))
        case = Case(step, before, self._memories(), java, ours, self.version)
        unasked = self._is_unasked_election(case)
        if case.codes[1] not in (0, None):
            world.memory.logs = logs
        if unasked:  # the group is compared once Java's broker has sent the request
            state = before if step.verb == "heartbeat" else java.state
            case = replace(case, java=replace(java, state=state), ours=replace(ours, state=state))
        case = self._without_shapes(case)
        self.outcome.steps += 1
        goes_on, deviation = self._judge(case, world)
        self.outcome.played.append(Played(step, java.answer, ours.answer, deviation.name if deviation else None))
        self._remember(case, world)
        if goes_on and unasked:
            return await self._elected_unasked(step, world)
        return goes_on and not await self._deposes_the_dead(step, world)

    async def _note_log(self, step: Step, world: GroupWorld) -> None:
        """Note what the broker that sends this step holds: it answers that to 1007. A new process (1003) has told nothing yet."""
        broker_id = step.number("id")
        if broker_id is None or step.designates or step.verb not in ("1002", "1003", "heartbeat"):
            return
        if step.verb == "1003":
            world.memory.logs.pop(broker_id, None)
        elif step.verb == "heartbeat":
            world.memory.logs[broker_id] = report_of(step)
        member = world.state.members.get(broker_id)
        if member is not None and CANONICAL.fullmatch(member.address or ""):
            await self.endpoints.at(member.address or "").start()  # also one that was closed: it sends requests

    def _is_unasked_election(self, case: Case) -> bool:
        """Whether this step makes ours elect. Our plane is asked only to know that the election must be awaited."""
        if case.step.verb not in MAKE_OURS_ELECT or not case.before.known or case.before.master is not None:
            return False
        if any(deviation.applies(case) for deviation in self._deviations if deviation.after is After.END):
            return False
        return case.ours.state.master is not None or self._ours.will_elect(self.prefix + (case.step.name or ""))

    async def _deposes_the_dead(self, step: Step, world: GroupWorld) -> bool:
        """Whether both elected a dead replica: ours notices at once, Java by its next scan (which never runs here)."""
        master, name = world.state.master, step.name or ""
        if step.verb != "1002" or master is None or master in world.memory.our_alive():
            return False
        if self.endpoints.listens(world.state.master_address):
            return False  # it answers as master: left alone
        before = world.state
        after = await self.until("ours", name, lambda state: state.master is None)
        if after.master is None and after.epoch == before.epoch + 1:
            self.outcome.deviations[DEPOSED.name] += 1
            self.outcome.ended_by = DEPOSED.name
            return True
        return False

    def _without_shapes(self, case: Case) -> Case:
        """Remove differences of spelling, and count each by name."""
        for shape in SHAPES:
            rewritten = shape.rewrite(case)
            if rewritten is not None:
                self.outcome.deviations[shape.name] += 1
                case = rewritten
        return case

    def _judge(self, case: Case, world: GroupWorld) -> tuple[bool, Deviation | None]:
        what = _difference(case)
        if what is None:
            world.state = case.ours.state
            return True, None
        for deviation in self._deviations:
            if deviation.applies(case):
                return self._accept(case, world, deviation), deviation
        self.outcome.difference = Difference(case, what)
        return False, None

    def _accept(self, case: Case, world: GroupWorld, deviation: Deviation) -> bool:
        self.outcome.deviations[deviation.name] += 1
        if deviation.after is After.END:
            self.outcome.ended_by = deviation.name
            return False
        java = case.java.state
        if deviation.after is After.SHIFT:
            ahead = Shift(java.epoch - case.ours.state.epoch, java.set_epoch - case.ours.state.set_epoch)
            world.shift = Shift(world.shift.epoch + ahead.epoch, world.shift.set_epoch + ahead.set_epoch)
            java = shifted_state(java, ahead)
        if java != case.ours.state:
            self.outcome.difference = Difference(case, f"more differs than {deviation.name} explains: the state")
            return False
        world.state = case.ours.state
        return True

    def _remember(self, case: Case, world: GroupWorld) -> None:
        step, memory, state = case.step, world.memory, case.ours.state
        memory.highest_epoch = max(memory.highest_epoch, state.epoch)
        broker_id = step.number("id")
        code = case.codes[1]
        memory.polled(step.verb, code)
        if step.verb == "1013" and code == 0 and broker_id is not None:
            memory.highest_id = max(memory.highest_id, broker_id)
            memory.check_codes[broker_id] = step.get("check") or ""
            if not case.before.known:
                memory.cluster = step.cluster
        elif step.verb == "1003" and code == 0 and broker_id is not None:
            memory.registered(broker_id)
        elif step.verb == "1002" and broker_id in case.before.members and not step.designates:
            assert broker_id is not None
            memory.asked_for_master(broker_id)
        elif step.verb == "1011" and code == 0:
            memory.cleaned |= case.before.members.keys() - state.members.keys()
        elif step.verb == "close" and broker_id is not None:
            if broker_id == case.before.master:
                memory.losses[broker_id] = memory.losses.get(broker_id, 0) + 1
            memory.closed(broker_id, step.get("conn") or "a")
        elif step.verb == "heartbeat" and broker_id is not None and code in (0, None):
            memory.beat_cluster[broker_id] = step.cluster
            memory.heartbeat(broker_id, report_of(step), step.get("conn") or "a")

    # ---- sending

    async def _ask_both(self, step: Step, world: GroupWorld) -> tuple[Seen, Seen]:
        if step.get("oneway") == "true":
            return await self._beat_oneway(step, world)
        java, ours = await asyncio.gather(self.ask("java", step), self.ask("ours", step))
        states = await self._states(step.name or "", world, java_and_ours=step.verb in WRITES)
        return Seen(java, states[0]), Seen(ours, states[1])

    async def disconnect(self, side: str, purpose: str) -> None:
        """End one connection."""
        await self._connections[side].close(purpose)

    async def ask(self, side: str, step: Step, *, purpose: str | None = None) -> Answer:
        """Send one request to one controller, and make its answer canonical."""
        world = self.group(step.name or "")
        shift = world.shift if side == "java" else Shift()
        command = self._real(command_of(step, shift, self.prefix))
        connection = await self._connections[side].get(purpose or _purpose(step))
        answer = await connection.invoke(command, timeout_seconds=DEADLINE_SECONDS)
        assert answer.is_response
        shifts = {name: world.shift for name, world in self.groups.items()} if side == "java" else {}
        return canonical_answer(answer, self._translate(side), shift, shifts)

    def _real(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        if fields is None:
            return command
        return msgspec.structs.replace(
            command, ext_fields={key: self.endpoints.real(value) for key, value in fields.items()}
        )

    def _translate(self, side: str) -> Callable[[str], str]:
        own = self._java.address if side == "java" else self._ours.address

        def translate(text: str) -> str:
            return self.endpoints.canonical(text.replace(self.prefix, "").replace(own, "controller:1"))

        return translate

    async def _states(self, name: str, world: GroupWorld, *, java_and_ours: bool) -> tuple[GroupState, GroupState]:
        if not java_and_ours or not name:
            return world.state, world.state
        await self._until_idle(name)
        java, ours = await asyncio.gather(self.state("java", name), self.state("ours", name))
        return java, ours

    async def _until_idle(self, name: str) -> None:
        """Wait until our plane has nothing left to do in this group."""
        await self._ours.idle(self.prefix + name, self.endpoints.answers_end_of_log)
        await self._ours.heard(self.prefix + name, self.endpoints.answers_end_of_log)
        await self._ours.idle(self.prefix + name, self.endpoints.answers_end_of_log)

    async def state(self, side: str, name: str) -> GroupState:
        """Return the group's state at this controller."""
        return state_of(await self.ask(side, Step.of(1006, name=name, names=name)), name)

    # ---- steps without an answer

    async def _beat_oneway(self, step: Step, world: GroupWorld) -> tuple[Seen, Seen]:
        """Send a dead member's one-way heartbeat, and wait until 1006 shows it alive."""
        name, broker_id = step.name or "", step.number("id")
        for side in ("java", "ours"):
            command = self._real(command_of(step, world.shift if side == "java" else Shift(), self.prefix))
            connection = await self._connections[side].get(_purpose(step))
            await connection.send_oneway(command, timeout_seconds=DEADLINE_SECONDS)
        java, ours = await asyncio.gather(
            self.until("java", name, lambda state: state.is_alive(broker_id)),
            self.until("ours", name, lambda state: state.is_alive(broker_id)),
        )
        await self._until_idle(name)
        return Seen(None, java), Seen(None, ours)

    async def until(
        self, side: str, name: str, holds: Callable[[GroupState], bool], *, still_seconds: float = DEADLINE_SECONDS / 2
    ) -> GroupState:
        """Poll for an effect. If the state stays unchanged for this long, it is compared as it is."""
        clock = asyncio.get_running_loop().time
        state = await self.state(side, name)
        deadline = clock() + still_seconds
        while not holds(state) and clock() < deadline:
            await asyncio.sleep(0.002)
            now = await self.state(side, name)
            if now != state:
                state, deadline = now, clock() + still_seconds
        return state

    async def _close(self, step: Step, world: GroupWorld) -> tuple[Seen, Seen]:
        """End the connection that carries a member's heartbeats, and its port."""
        name, broker_id = step.name or "", step.number("id")
        assert broker_id is not None
        before, connection = world.state, step.get("conn") or "a"
        member = before.members.get(broker_id)
        java_dies, ours_dies = world.memory.ends_with(broker_id, connection)
        if ours_dies and member is not None and member.address:
            await self.endpoints.at(member.address).stop()
        for side in ("java", "ours"):
            await self._connections[side].close(f"heartbeats {name} {broker_id} {connection}")
        java, ours = await asyncio.gather(
            self.until(
                "java",
                name,
                lambda state: not java_dies or _java_is_done(before, state, broker_id),
                still_seconds=JAVA_IS_STILL_SECONDS,
            ),
            self.until("ours", name, lambda state: not ours_dies or _our_is_done(before, state, broker_id)),
        )
        if ours_dies:
            await self._until_idle(name)
            ours = await self.state("ours", name)
        case = Case(step, before, self._memories(), Seen(None, java), Seen(None, ours), self._java.version)
        if java_dies and not _java_is_done(before, java, broker_id) and not self._is_listed(case):
            # A slow disk does not count as a difference: a Java election waits for an entry of its log.
            java = await self.until("java", name, lambda state: _java_is_done(before, state, broker_id))
        return Seen(None, java), Seen(None, ours)

    def _is_listed(self, case: Case) -> bool:
        """Whether an entry explains the case that does not depend on the order of Java's threads."""
        entries = (one for one in self._deviations if not one.special)
        return _difference(case) is None or any(one.applies(case) for one in entries)

    async def _elected_unasked(self, step: Step, world: GroupWorld) -> bool:
        """A set's member returned while there is no master: ours elects at once, Java on request. Send it, and compare."""
        state, name, caller = world.state, step.name or "", step.number("id")
        if (
            step.verb == "heartbeat" and step.cluster != world.memory.cluster
        ):  # Java has not heard the member, and no broker sends a request
            self.outcome.deviations[IN_ANOTHER_CLUSTER] += 1
            self.outcome.ended_by = IN_ANOTHER_CLUSTER
            return False
        elected = await self.until("ours", name, lambda now: now.master is not None)
        await self._ours.idle(self.prefix + name, self.endpoints.answers_end_of_log)
        if step.verb != "heartbeat":
            caller = elected.master
        asked = Step.of(1002, name=name, id=caller, designate=False)
        java = await self.ask("java", asked)
        states = await self._states(name, world, java_and_ours=True)
        case = Case(asked, state, self._memories(), Seen(java, states[0]), Seen(None, states[1]), self._java.version)
        case = self._without_shapes(case)
        self.outcome.played.append(Played(asked, java, None, "elected-unasked"))
        alive = {one: replace(it, alive=case.java.state.is_alive(one)) for one, it in state.members.items()}
        if java.code == 0 and case.same_state and case.java.state.epoch == state.epoch + 1:
            self.outcome.deviations["elected-unasked"] += 1
            world.state = case.ours.state
            return True
        case = replace(case, before=replace(state, members=alive))
        for deviation in self._deviations:
            if deviation.applies(case):
                return self._accept(case, world, deviation)
        self.outcome.difference = Difference(case, "elected unasked, and not what Java elects when asked")
        return False


def _purpose(step: Step) -> str:
    if step.verb == "heartbeat":
        return f"heartbeats {step.name} {step.number('id')} {step.get('conn') or 'a'}"
    return "requests"


def _java_is_done(before: GroupState, now: GroupState, broker_id: int) -> bool:
    """Whether Java has finished its reaction to a closed connection."""
    if before.master != broker_id:
        return not now.is_alive(broker_id)
    if now.master is None:
        return now.epoch >= before.epoch + JAVA_ELECTION_TRIES
    return now.master != broker_id and not now.is_alive(broker_id)


def _our_is_done(before: GroupState, now: GroupState, broker_id: int) -> bool:
    return not now.is_alive(broker_id) and (before.master != broker_id or now.master != broker_id)


def report_of(step: Step) -> Report:
    """Return a heartbeat step's report, with the defaults of Java's header."""

    def number(key: str, default: int, bits: int) -> int:
        value = step.number(key)
        return default if value is None or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else value

    return Report(number("epoch", -1, 32), number("maxOffset", -1, 64), number("priority", LOWEST_PRIORITY, 32))


def _difference(case: Case) -> str | None:
    """Return a word for the difference; None if there is none."""
    java, ours = case.java.answer, case.ours.answer
    if java is not None and ours is not None:
        for what in ("code", "remark", "fields", "body"):
            if getattr(java, what) != getattr(ours, what):
                return f"another {what}"
    return None if case.same_state else "another state"
