"""One step as both controllers saw it: what shapes and deviations are told about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.differential.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.differential.canonical import Answer, GroupState
    from tests.differential.language import Step


@dataclass(frozen=True)
class Seen:
    """What one controller answered, and the group afterwards. No answer: the step was no request."""

    answer: Answer | None
    state: GroupState


@dataclass(frozen=True)
class Case:
    """One step, seen from both sides. The memories, by group, are as of before the step."""

    step: Step
    before: GroupState
    memories: Mapping[str, Memory]
    java: Seen
    ours: Seen
    version: str

    @property
    def memory(self) -> Memory:
        """What is known of the step's own group."""
        return self.memories.get(self.step.name or "", Memory())

    def alive_by_request(self, name: str) -> frozenset[int]:
        """Who counts as alive at ours by a request of its own, this step's included, without a heartbeat since."""
        asked = set(self.memories[name].alive_by_request) if name in self.memories else set()
        broker_id = self.step.number("id")
        if name == self.step.name and broker_id in self.before.members and broker_id is not None:
            own = self.step.verb == "1003" or (self.step.verb == "1002" and not self.step.designates)
            if own:
                asked.add(broker_id)
            elif self.step.verb == "heartbeat":
                asked.discard(broker_id)
        return frozenset(asked)

    def with_answers(self, java: Answer, ours: Answer) -> Case:
        return replace(self, java=replace(self.java, answer=java), ours=replace(self.ours, answer=ours))

    def with_our_state(self, state: GroupState) -> Case:
        return replace(self, ours=replace(self.ours, state=state))

    @property
    def codes(self) -> tuple[int | None, int | None]:
        """Java's code, our code."""
        return (
            self.java.answer.code if self.java.answer is not None else None,
            self.ours.answer.code if self.ours.answer is not None else None,
        )

    @property
    def same_state(self) -> bool:
        return self.java.state == self.ours.state

    @property
    def unchanged(self) -> bool:
        """Neither changed anything."""
        return self.java.state == self.before == self.ours.state
