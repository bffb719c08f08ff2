"""What a connection allows its peer."""

from __future__ import annotations

import dataclasses

from rocketmq_remoting.codec import FrameLimits


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
