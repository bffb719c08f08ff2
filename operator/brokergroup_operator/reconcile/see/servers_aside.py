"""Asks servers beside the passes: a server that a tenant names, and that never answers, must hold no place among the passes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.reconcile.see.bundles import Proof

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.reconcile.see.bundles import Servers

# A server that answers does so in milliseconds: a pass that takes a step mostly has the answer of this moment.
PATIENCE_SECONDS: Final = 0.5
# Longer than a group that waits looks again, so that the next pass has an answer that came too late for this one.
KEPT_SECONDS: Final = 15.0
ASKED: Final = Proof(silent=("servers are being asked",))
_Question = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass
class ServersAside:
    """An answer is at most `KEPT_SECONDS` old; until there is one the servers are silent."""

    servers: Servers
    clock: Callable[[], float] = time.monotonic
    patience_seconds: float = PATIENCE_SECONDS
    _found: dict[_Question, tuple[float, Proof]] = field(default_factory=dict)
    _asked: dict[_Question, asyncio.Task[None]] = field(default_factory=dict)

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        question = (bundle, tuple(sorted(set(addresses))), tuple(sorted(set(controllers))))
        now = self.clock()
        self._found = {one: found for one, found in self._found.items() if now - found[0] <= KEPT_SECONDS}
        if question not in self._found and question not in self._asked:
            self._asked[question] = task = asyncio.create_task(self._ask(question))
            done, _ = await asyncio.wait([task], timeout=self.patience_seconds)
            for one in done:
                one.result()  # a fault of ours fails the pass
        return self._found[question][1] if question in self._found else ASKED

    async def _ask(self, question: _Question) -> None:
        try:
            self._found[question] = self.clock(), await self.servers.proof(*question)
        finally:
            del self._asked[question]

    async def stop(self) -> None:
        """Cancel what is being asked."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
