"""Who is best: a policy is one small pure function in a file of its own, found here by its name.

A policy chooses among candidates that may all become master: alive, reachable, not passed over, not learners, with what
they must hold. It is asked only in a *clean* election, where every candidate holds every acknowledged message; where
data is at stake (unclean, or a first election on disks with data) the most data wins, whatever the policy.

A module of this package that has a `NAME` and a `choose` is a policy; a new one is one new file.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controller_core.model import BrokerGroupRecord, LiveReplica
    from controller_core.settings import ControllerSettings


class Policy(Protocol):
    """Choose one of the candidates, of which there is at least one. Equal input, equal choice."""

    def __call__(
        self, candidates: Sequence[LiveReplica], record: BrokerGroupRecord, settings: ControllerSettings
    ) -> LiveReplica:
        """Return the best candidate."""


class UnknownPolicyError(ValueError):
    """No policy of that name: the message lists those there are."""


def _found() -> Mapping[str, Policy]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {module.NAME: module.choose for module in modules if hasattr(module, "NAME")}


POLICIES: Mapping[str, Policy] = _found()
"""Every policy by its name."""


def policy(name: str) -> Policy:
    """Return the policy of this name."""
    if name not in POLICIES:
        raise UnknownPolicyError(f"election policy is {name!r}, expected one of {', '.join(sorted(POLICIES))}")
    return POLICIES[name]
