"""Is a controller stopped? Only a refused connection says so; silence may be a cut cable with a living controller behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.broker_lists import reachable, split_list
from brokergroup_operator.migrate.java_calls import MigrationCallError, NobodyListensError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.migrate.java_calls import JavaCalls
    from brokergroup_operator.migrate.java_state import BrokerSaid


def listed_controllers(groups: Iterable[Mapping[int, BrokerSaid | str]]) -> tuple[str, ...]:
    """Every controller that any broker of these groups lists."""
    return tuple(
        dict.fromkeys(
            address
            for brokers in groups
            for said in reachable(brokers).values()
            for address in split_list(said.listed_controllers)
        )
    )


async def not_stopped(
    calls: JavaCalls, addresses: Iterable[str], *, gone: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Which of these may still be running, and what says so. ``gone`` are those of which no answer is enough."""
    asked = list(addresses)
    found = await asyncio.gather(*(_sign_of_life(calls, address, gone) for address in asked))
    return {address: sign for address, sign in zip(asked, found, strict=True) if sign is not None}


async def has_died(calls: JavaCalls, broker: str) -> bool:
    """Whether nobody listens at a broker's address."""
    try:
        await calls.broker_configuration(broker)
    except NobodyListensError:
        return True
    except MigrationCallError:
        return False
    return False


async def _sign_of_life(calls: JavaCalls, address: str, gone: frozenset[str]) -> str | None:
    try:
        await calls.metadata(address)
    except NobodyListensError:
        return None
    except MigrationCallError as error:
        return None if address in gone else str(error)
    return "it answers"
