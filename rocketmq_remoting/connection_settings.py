"""What a connection allows its peer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rocketmq_remoting.codec import FrameLimits

if TYPE_CHECKING:
    from rocketmq_remoting.byte_budget import ByteBudget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits of one connection, the same for all of a server or client."""

    limits: FrameLimits = dataclasses.field(default_factory=FrameLimits)
    idle_timeout_seconds: float = 120.0
    """Without a byte in either direction for so long, the connection is closed (Java: 120 s on both sides)."""
    frame_timeout_seconds: float = 15.0
    """A frame that has begun must be there in full within this time."""
    max_in_flight: int = 1024
    """Requests of this peer being handled at once."""
    budget: ByteBudget | None = None
    """For bytes of unfinished frames, shared by all connections of a server; None on a client, who chose its peers."""
