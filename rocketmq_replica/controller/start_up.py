"""The next request to a controller, and the meaning of an answer to a poll. Pure.

Two independent facts decide: whether a controller has taken this process's registration (``is_registered``), and whether this
replica has a role. A 1008 may bring the role first; the registration is still repeated until it is answered. The states are those
of Java's ReplicasManager. An application for an id is repeated with its saved check code until a controller answers it: Java drops
it on a timeout and wastes an id.
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
    """The state of one process with its controllers: ``question`` is the next request, and every answer goes in."""

    def __init__(
        self,
        *,
        cluster_name: str,
        broker_name: str,
        broker_address: str,
        confirmed: BrokerIdentity | None,
        applied: BrokerIdentity | None,
    ) -> None:
        """``confirmed`` and ``applied`` come from the identity files."""
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
        """The next request."""
        if self.identity is None:
            return Question.NEXT_BROKER_ID if self.application is None else Question.APPLY_BROKER_ID
        return Question.REGISTER if self._is_unknown else self._next

    def offered(self, broker_id: int, *, now_ms: int) -> BrokerIdentity:
        """Take the answer to 1012. Return the application, to be saved before it is sent."""
        code = f"{self._broker_address};{now_ms}"
        self.application = BrokerIdentity(self._cluster_name, self._broker_name, broker_id, code)
        return self.application

    def accepted(self) -> BrokerIdentity:
        """Take the grant of 1013. Return the identity, to be saved."""
        assert self.application is not None
        self.identity, self.application = self.application, None
        return self.identity

    def refused(self, code: int) -> bool:
        """Take a refusal of 1013. Return True if the id belongs to another broker, so that the application must be removed."""
        if code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self.application = None
            return True
        return False

    def registered(self, info: GroupInfo) -> None:
        """Take the answer to 1003. A group without a master has to elect one."""
        self.is_registered, self._is_unknown = True, False
        self._told(info)

    def elected(self, info: GroupInfo) -> None:
        """Take the answer to 1002."""
        self._told(info)

    def polled(self, info: GroupInfo) -> None:
        """Take the answer to 1004."""
        self._told(info)

    def _told(self, info: GroupInfo) -> None:
        masterless = info.master_broker_id is None
        self._next = Question.ELECT if masterless else Question.REPLICA_INFO
        self.info = None if masterless else info

    def has_role(self) -> None:
        """Record that this replica has a role, by an answer or a 1008: it polls, and registers only if a controller lost it."""
        self._next = Question.REPLICA_INFO

    def has_no_role(self) -> None:
        """Record that the role of an answer could not be taken: the next registration brings another epoch."""
        self._next = Question.REGISTER

    def failed(self, code: int | None = None) -> None:
        """Record that the last request failed, with this code if it was answered. A failed poll is repeated."""
        self.info, asked = None, self.question
        if code in _UNKNOWN_CODES and not (asked is Question.REGISTER and self.is_registered):
            self._is_unknown = True
        # A running process polls before it registers again: a controller that knows the group by then (an orphaned BrokerGroup
        # that was created again) would take the master's 1003 for a new process and demote it.
        elif asked is Question.REGISTER and self.is_registered:
            self._is_unknown = False
        # A controller takes each registration for a new process and ignores heartbeats from before it, so 1002 is repeated while
        # no replica can be elected. After any other failure the controller may have lost this replica's address.
        elif self._next is Question.ELECT and code != ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            self._next = Question.REGISTER


class Verdict(enum.Enum):
    """What a poll (1004) says about the present role."""

    MASTERSHIP_TAKEN = enum.auto()  # a later epoch without a master: stop, and request an election
    CONFIRMED = enum.auto()  # this replica is master in this epoch
    OTHERWISE = enum.auto()  # a new term or no change, for ``Roles`` to apply


def judge_poll(info: GroupInfo, *, known: MasterSeen, own_id: int) -> Verdict:
    """Compare the controller's answer with the known master."""
    if info.master_epoch > known.master_epoch and info.master_broker_id is None:
        return Verdict.MASTERSHIP_TAKEN
    if (info.master_epoch, info.master_broker_id) == (known.master_epoch, own_id):
        return Verdict.CONFIRMED
    return Verdict.OTHERWISE
