"""What a controller's word about the master means, case by case, without broker, log or clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_replica.role_change import GroupInfo, MasterSeen, RoleChange, judge_role

ME, OTHER, THIRD = 1, 2, 3
HERE, THERE, ELSEWHERE = "h:1", "h:2", "h:3"
OTHER_TERMS = MasterSeen(5, OTHER, THERE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Epoch 5 is known, with the other as master, unless said otherwise."""

    epoch: int = 6
    master: int | None = OTHER
    address: str = THERE
    known: MasterSeen = OTHER_TERMS
    last_log_epoch: int = 5
    last_log_epoch_is_empty: bool = False
    is_master: bool = False
    is_slave: bool = True
    linked: bool = True

    def judge(self) -> RoleChange:
        return judge_role(
            GroupInfo(self.epoch, self.master, self.address, frozenset({OTHER}), 1),
            known=self.known,
            own_id=ME,
            last_log_epoch=self.last_log_epoch,
            last_log_epoch_is_empty=self.last_log_epoch_is_empty,
            is_master=self.is_master,
            is_slave=self.is_slave,
            linked=self.linked,
        )


NEW_EPOCH = {RoleChange.BEGIN_TERM, RoleChange.CONTINUE_TERM, RoleChange.FOLLOW, RoleChange.FOLLOW_ON}
MASTER: dict[str, Any] = {"known": MasterSeen(5, ME, HERE), "is_master": True, "is_slave": False, "linked": False}


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (Case(master=None, address=""), RoleChange.NOTHING),
        (Case(address=""), RoleChange.NOTHING),
        (Case(epoch=5), RoleChange.NOTHING),
        (Case(epoch=5, master=THIRD, address=ELSEWHERE), RoleChange.NOTHING),
        (Case(epoch=4, master=ME, address=HERE), RoleChange.NOTHING),
        (Case(epoch=5, address=ELSEWHERE, linked=False), RoleChange.MASTER_MOVED),
        (Case(epoch=5, address=ELSEWHERE, linked=True), RoleChange.NOTHING),
        (Case(epoch=4, address=ELSEWHERE, linked=False), RoleChange.NOTHING),
        (Case(epoch=5, master=THIRD, address=ELSEWHERE, linked=False), RoleChange.NOTHING),
        (Case(epoch=6), RoleChange.FOLLOW_ON),
        (Case(epoch=6, address=ELSEWHERE), RoleChange.FOLLOW),
        (Case(epoch=6, master=THIRD, address=ELSEWHERE), RoleChange.FOLLOW),
        (Case(epoch=6, is_slave=False, linked=False), RoleChange.FOLLOW),
        (Case(epoch=6, master=ME, address=HERE), RoleChange.BEGIN_TERM),
        (Case(epoch=6, master=ME, address=HERE, **MASTER), RoleChange.CONTINUE_TERM),
        (Case(epoch=6, master=ME, address=HERE, **MASTER | {"is_master": False}), RoleChange.BEGIN_TERM),
        (Case(epoch=6, **MASTER), RoleChange.FOLLOW),
        (Case(epoch=5, master=ME, address=HERE, **MASTER), RoleChange.NOTHING),
        (Case(epoch=6, last_log_epoch=7), RoleChange.WENT_BACK),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=7), RoleChange.WENT_BACK),
        (Case(epoch=7, last_log_epoch=7), RoleChange.FOLLOW_ON),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=6), RoleChange.TERM_OF_ANOTHER_PROCESS),
        (
            Case(epoch=6, master=ME, address=HERE, last_log_epoch=6, last_log_epoch_is_empty=True),
            RoleChange.BEGIN_TERM,
        ),
        (Case(epoch=6, master=ME, address=HERE, last_log_epoch=6, **MASTER), RoleChange.CONTINUE_TERM),
        (
            Case(epoch=1, known=MasterSeen(), last_log_epoch=-1, is_slave=False, linked=False),
            RoleChange.FOLLOW,
        ),
    ],
)
def test_each_word(case: Case, change: RoleChange) -> None:
    assert case.judge() is change


CASES = st.builds(
    Case,
    epoch=st.integers(0, 8),
    master=st.sampled_from([None, ME, OTHER, THIRD]),
    address=st.sampled_from(["", HERE, THERE, ELSEWHERE]),
    known=st.builds(MasterSeen, st.integers(0, 8), st.sampled_from([-1, ME, OTHER]), st.sampled_from([HERE, THERE])),
    last_log_epoch=st.integers(-1, 8),
    is_master=st.booleans(),
    is_slave=st.booleans(),
    linked=st.booleans(),
)


@given(CASES)
def test_only_a_higher_epoch_changes_the_role_and_none_below_the_log(case: Case) -> None:
    change = case.judge()
    if change in NEW_EPOCH:
        assert case.epoch > case.known.master_epoch
        assert case.epoch >= case.last_log_epoch
        assert case.master is not None
        assert (change in (RoleChange.BEGIN_TERM, RoleChange.CONTINUE_TERM)) == (case.master == ME)
    elif change is RoleChange.MASTER_MOVED:
        assert (case.epoch, case.master) == (case.known.master_epoch, case.known.broker_id)
        assert not case.linked
