"""What to ask a controller next, and what an answer to a poll means. Pure.

Two facts decide, each by itself: whether a controller has taken this process's registration (``is_registered``), and whether this
replica has a role. A 1008 may bring the role first; the registration is asked for until it is answered all the same. The states of
a start are those of Java's ReplicasManager. An application for an id is repeated under its saved check code until a controller
answers it: Java forgets it on a time-out, and burns an id.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.role_change import BrokerIdentity

if TYPE_CHECKING:
    from rocketmq_replica.role_change import GroupInfo, MasterSeen

# The controller's record lacks this group, or this replica.
_UNKNOWN_CODES = (
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
)


class Question(enum.Enum):
    """A request to a controller."""

    NEXT_BROKER_ID = 1012
    APPLY_BROKER_ID = 1013
    REGISTER = 1003
    ELECT = 1002
    REPLICA_INFO = 1004


class StartUp:
    """What one process has settled with its controllers: ``question`` says what to ask, every answer goes in."""

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
        self.is_registered = False
        self._is_unknown = True  # to the controllers: none has taken a 1003, or one has lost it since
        self._next = Question.REGISTER

    @property
    def question(self) -> Question:
        """What to ask now."""
        if self.identity is None:
            return Question.NEXT_BROKER_ID if self.application is None else Question.APPLY_BROKER_ID
        return Question.REGISTER if self._is_unknown else self._next

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
        self.is_registered, self._is_unknown = True, False
        self._told(info)

    def elected(self, info: GroupInfo) -> None:
        """1002 was answered with a master."""
        self._told(info)

    def polled(self, info: GroupInfo) -> None:
        """1004 was answered."""
        self._told(info)

    def _told(self, info: GroupInfo) -> None:
        masterless = info.master_broker_id is None
        self._next = Question.ELECT if masterless else Question.REPLICA_INFO
        self.info = None if masterless else info

    def has_role(self) -> None:
        """This replica has a role, by an answer or a 1008: from now on it polls, and registers only if a controller lost it."""
        self._next = Question.REPLICA_INFO

    def has_no_role(self) -> None:
        """The role that an answer named could not be taken: the next registration brings another one."""
        self._next = Question.REGISTER

    def failed(self, code: int | None = None) -> None:
        """Take note that the last question got no answer, or an error with this code. A failed poll is repeated."""
        self.info, asked = None, self.question
        if code in _UNKNOWN_CODES and not (asked is Question.REGISTER and self.is_registered):
            self._is_unknown = True
        # A running process polls again before it registers again: a controller that knows the group by then (a BrokerGroup that
        # was orphaned and made anew) would take the 1003 of its master for a new process, and depose it.
        elif asked is Question.REGISTER and self.is_registered:
            self._is_unknown = False
        # A controller takes each registration for a new process, and elects no replica by a heartbeat from before it: 1002 is
        # repeated while nobody can be elected. After another failure the controller may have forgotten this replica's address.
        elif self._next is Question.ELECT and code != ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            self._next = Question.REGISTER


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
