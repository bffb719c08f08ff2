"""One step at both controllers: the input of shapes and deviations."""

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
    """One controller's answer, and the group afterwards. No answer: the step was not a request."""

    answer: Answer | None
    state: GroupState


@dataclass(frozen=True)
class Case:
    """One step at both controllers. The memories, by group, are those before the step."""

    step: Step
    before: GroupState
    memories: Mapping[str, Memory]
    java: Seen
    ours: Seen
    version: str

    @property
    def memory(self) -> Memory:
        """Return the memory of the step's group."""
        return self.memories.get(self.step.name or "", Memory())

    @property
    def broker_id(self) -> int | None:
        return self.step.number("id")

    def alive_by_request(self, name: str) -> frozenset[int]:
        """Return ids that ours counts as alive by their own request (this step's included), without a heartbeat since."""
        asked = set(self.memories[name].alive_by_request) if name in self.memories else set()
        if name == self.step.name and self.broker_id in self.before.members and self.broker_id is not None:
            own = self.step.verb == "1003" or (self.step.verb == "1002" and not self.step.designates)
            if own:
                asked.add(self.broker_id)
            elif self.step.verb == "heartbeat":
                asked.discard(self.broker_id)
        return frozenset(asked)

    def with_answers(self, java: Answer, ours: Answer) -> Case:
        return replace(self, java=replace(self.java, answer=java), ours=replace(self.ours, answer=ours))

    def with_our_state(self, state: GroupState) -> Case:
        return replace(self, ours=replace(self.ours, state=state))

    @property
    def codes(self) -> tuple[int | None, int | None]:
        """Return Java's code and our code."""
        return (
            self.java.answer.code if self.java.answer is not None else None,
            self.ours.answer.code if self.ours.answer is not None else None,
        )

    @property
    def same_state(self) -> bool:
        return self.java.state == self.ours.state
