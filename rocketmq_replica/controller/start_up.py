"""What to ask a controller next, until this replica has an id and a role; and what an answer to a poll means. Pure.

The states of a start are those of Java's ReplicasManager: an id is
applied for under a check code that was saved before, and the application is forgotten only when the controller says that
it was refused. A time-out says nothing: Java forgets it then, and burns an id.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.term.group_info import BrokerIdentity

if TYPE_CHECKING:
    from rocketmq_replica.term.group_info import GroupInfo, MasterSeen


class Question(enum.Enum):
    """A request to a controller."""

    NEXT_BROKER_ID = 1012
    APPLY_BROKER_ID = 1013
    REGISTER = 1003
    ELECT = 1002


class StartUp:
    """One start: ``question`` says what to ask, every answer goes in, ``info`` is there when a role can be taken."""

    def __init__(
        self,
        *,
        cluster_name: str,
        broker_name: str,
        broker_address: str,
        confirmed: BrokerIdentity | None,
        applied: BrokerIdentity | None,
    ) -> None:
        """``confirmed`` and ``applied`` are what the identity files say."""
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._broker_address = broker_address
        self.identity = confirmed
        self.application = None if confirmed is not None else applied
        self.info: GroupInfo | None = None
        self._elect = False

    @property
    def question(self) -> Question:
        """What to ask now."""
        if self.identity is None:
            return Question.NEXT_BROKER_ID if self.application is None else Question.APPLY_BROKER_ID
        return Question.ELECT if self._elect else Question.REGISTER

    def offered(self, broker_id: int, *, now_ms: int) -> BrokerIdentity:
        """1012 was answered: the application, to be saved before it is made."""
        code = f"{self._broker_address};{now_ms}"
        self.application = BrokerIdentity(self._cluster_name, self._broker_name, broker_id, code)
        return self.application

    def accepted(self) -> BrokerIdentity:
        """1013 was granted: the identity, to be saved."""
        assert self.application is not None
        self.identity, self.application = self.application, None
        return self.identity

    def refused(self, code: int) -> bool:
        """1013 was answered with another code; True if the id is somebody else's and the application is to be forgotten."""
        if code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self.application = None
            return True
        return False

    def registered(self, info: GroupInfo) -> None:
        """1003 was answered; a group without a master has to elect one."""
        self._elect = info.master_broker_id is None
        self.info = None if self._elect else info

    def elected(self, info: GroupInfo) -> None:
        """1002 was answered with a master."""
        self.info = info

    def failed(self, code: int | None = None) -> None:
        """The last question got no answer, or an error with this code. The next question is REGISTER: the controller may have
        forgotten this replica's address. After CONTROLLER_ELECT_MASTER_FAILED it is ELECT once more: the controller takes each
        registration for a new process, and elects no replica by a heartbeat from before it.
        """
        self._elect = self._elect and code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        self.info = None


class Verdict(enum.Enum):
    """What a poll (1004) says about the role we have."""

    MASTERSHIP_TAKEN = enum.auto()  # a later epoch, and nobody is master: stop, and ask for an election
    CONFIRMED = enum.auto()  # we are master in this very epoch
    OTHERWISE = enum.auto()  # a new term, or nothing new: the roles know


def judge_poll(info: GroupInfo, *, known: MasterSeen, own_id: int) -> Verdict:
    """Compare the controller's word with what we last knew."""
    if info.master_epoch > known.master_epoch and info.master_broker_id is None:
        return Verdict.MASTERSHIP_TAKEN
    if (info.master_epoch, info.master_broker_id) == (known.master_epoch, own_id):
        return Verdict.CONFIRMED
    return Verdict.OTHERWISE
