"""PendingAcks against a naive one that looks at everybody each time: any deadlines, in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from rocketmq_replica.master_term import PendingAcks

WAIT, RELEASE, EXPIRE, PROLONG, CLEAR = range(5)
ACTIONS = st.lists(st.tuples(st.integers(WAIT, CLEAR), st.integers(1, 20)), max_size=60)


@dataclass
class NaiveRoom:
    """Who waits: name to (end offset, deadline)."""

    waiting: dict[int, tuple[int, float]] = field(default_factory=dict)

    def take(self, names: list[int]) -> list[int]:
        for name in names:
            del self.waiting[name]
        return names

    def release(self, offset: int) -> list[int]:
        return self.take([name for name, (end, _) in self.waiting.items() if end <= offset])

    def due(self, now_seconds: float) -> set[int]:
        return {name for name, (_, deadline) in self.waiting.items() if deadline <= now_seconds}

    def next_deadline_seconds(self) -> float | None:
        return min((deadline for _, deadline in self.waiting.values()), default=None)


@given(ACTIONS)
def test_nobody_is_forgotten_or_told_twice(actions: list[tuple[int, int]]) -> None:
    room: PendingAcks[int] = PendingAcks()
    naive = NaiveRoom()
    end_offset, now_seconds = 0, 0.0
    for name, (action, number) in enumerate(actions):
        if action == WAIT:
            end_offset += 10
            room.wait(name, end_offset=end_offset, deadline_seconds=now_seconds + number)
            naive.waiting[name] = (end_offset, now_seconds + number)
        elif action == RELEASE:
            assert room.release(number * 10) == naive.release(number * 10)
        elif action == CLEAR and number == 1:
            assert room.clear() == naive.take(list(naive.waiting))
        else:
            now_seconds += number / 4
            due = room.due(now_seconds)
            assert {each.waiter for each in due} == naive.due(now_seconds)
            assert len(due) == len(naive.due(now_seconds))
            for position, each in enumerate(due):
                if action == PROLONG and position % 2:
                    room.wait_until(each, now_seconds + number)
                    naive.waiting[each.waiter] = (naive.waiting[each.waiter][0], now_seconds + number)
                else:
                    room.leave(each)
                    naive.take([each.waiter])
        assert len(room) == len(naive.waiting)
        assert room.next_deadline_seconds() == naive.next_deadline_seconds()


def test_what_is_answered_is_not_kept_until_its_deadline() -> None:
    room: PendingAcks[int] = PendingAcks()
    for name in range(10_000):
        room.wait(name, end_offset=name, deadline_seconds=1000.0 + name)
        assert room.release(name) == [name]
    assert not room._in_turn
    assert not room._out_of_turn
