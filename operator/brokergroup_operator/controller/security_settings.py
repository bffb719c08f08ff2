"""What the controller plane asks of those who speak to it: TLS, signatures, administrators, readable configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Nothing is asked yet."""
