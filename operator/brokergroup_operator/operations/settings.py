"""What the operator may set about operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OperationSettings:
    """Settings of the operations plane."""

    api_timeout_seconds: float = 10.0
    # Which operator this is: it carries out what is asked of the groups that it reconciles, and of no others (ADR 10).
    operator: str | None = None
    # Finished operations that are kept per group; a TTL of their own may end them sooner.
    history_limit: int = 20
    # While one runs, its end is looked for this often, even without an event.
    running_poll_seconds: float = 1.0
