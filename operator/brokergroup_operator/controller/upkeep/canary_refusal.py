"""What a broker's refusal of the canary means to a person: who was refused, and what has to be given.

Whoever signs needs Pub on the canary's topic, and Create while that does not exist (RocketMQ's ACL 2.0). A broker answers with the
same code where nobody may write into the topic, which no user's right mends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.controller.peers.broker_calls import WRITE_AND_READ
from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from brokergroup_operator.controller.peers.broker_calls import NotPermittedError

# In Java's words and in the Python replica's, where the topic or the broker takes no messages from anybody.
_CLOSED_TO_ALL = "forbid"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's 16 to a message of the canary, or to the making of its topic."""

    topic: str
    # Of the monotonic clock.
    at_seconds: float
    error: NotPermittedError

    @property
    def cause(self) -> tuple[str | None, str]:
        """The user and what he needs: as long as that is the same, there is nothing new to tell."""
        return self.error.access_key, self.needs

    @property
    def needs(self) -> str:
        """What has to be given for the message to be taken."""
        if _CLOSED_TO_ALL in self.error.remark:
            return f"perm {WRITE_AND_READ} of topic {self.topic}, and a brokerPermission that lets it be written"
        if self.error.code != RequestCode.SEND_MESSAGE_V2:
            return f"Create on Topic:{self.topic}, or that topic, made by somebody who may"
        right = f"Pub on Topic:{self.topic} (and Create, where it does not exist)"
        if self.error.access_key is None:
            return f"spec.security.credentialsSecretName of a user of the broker's ACL who has {right}"
        return f"that user with the group's secret in the broker's ACL, and {right}"

    def __str__(self) -> str:
        user = f"of user {self.error.access_key!r}" if self.error.access_key is not None else "that is unsigned"
        return (
            f"broker {self.error.address} refuses the canary {user}: needed is {self.needs};"
            f" the broker says: {self.error.remark}"
        )
