"""The controller list of each broker: change it (25), see when it takes effect, and find which controllers are stopped.

A broker stores the new text at once and reads it every 120 s, counted from its own start (measured on 5.5.0: 51, 60 and 70 s
after the change for three brokers started 9 s apart). Within the next 3 s it connects to new controllers and drops the removed
ones. So the first heartbeat at a controller that no old list names proves that this broker has dropped every controller outside
its new list.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.java import BrokerSaid, JavaCalls, MigrationCallError, PortClosedError
from rocketmq_remoting.address import one_spelling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# A broker reads its list every 120 s, then tests connections every 3 s, and must be heard once.
RE_READ_SECONDS = 120.0
LIST_DEADLINE_SECONDS = RE_READ_SECONDS + 3.0 + 12.0


def split_list(text: str) -> tuple[str, ...]:
    """Return the addresses of a ``controllerAddr``, each in its canonical spelling."""
    return tuple(one_spelling(part.strip()) for part in text.split(";") if part.strip())


def reachable(brokers: Mapping[int, BrokerSaid | str]) -> dict[int, BrokerSaid]:
    """Return the brokers that answered."""
    return {broker_id: said for broker_id, said in brokers.items() if isinstance(said, BrokerSaid)}


def who_lists(brokers: Mapping[int, BrokerSaid | str], address: str) -> frozenset[int]:
    """Return the brokers whose configuration already names this controller; it may not be in use yet."""
    return frozenset(
        broker_id for broker_id, said in reachable(brokers).items() if address in split_list(said.listed_controllers)
    )


def cannot_take(brokers: Mapping[int, BrokerSaid | str], controller_list: str) -> list[str]:
    """Return why brokers cannot use this list; empty if they can. With a DNS look-up the list is a single name."""
    if len(split_list(controller_list)) == 1:
        return []
    return [
        f"broker {broker_id} looks its controllers up in DNS, which takes one host:port and not {controller_list!r}: "
        "name one (--controller-list)"
        for broker_id, said in sorted(reachable(brokers).items())
        if said.looks_up_controllers
    ]


async def change_lists(
    calls: JavaCalls, brokers: Mapping[int, BrokerSaid | str], controller_address: str
) -> dict[int, str]:
    """Set this list at every broker that answered; return the refusals by broker id."""
    failed: dict[int, str] = {}
    for broker_id, said in sorted(reachable(brokers).items()):
        try:
            await calls.list_controllers(said.address, controller_address)
        except MigrationCallError as error:
            failed[broker_id] = str(error)
    return failed


async def restore_lists(calls: JavaCalls, brokers: Mapping[int, BrokerSaid | str]) -> dict[int, str]:
    """Set every broker's list to the one it reported; return the refusals by broker id."""
    failed: dict[int, str] = {}
    for broker_id, said in sorted(reachable(brokers).items()):
        try:
            await calls.list_controllers(said.address, said.listed_controllers)
        except MigrationCallError as error:
            failed[broker_id] = str(error)
    return failed


def listed_controllers(groups: Iterable[Mapping[int, BrokerSaid | str]]) -> tuple[str, ...]:
    """Return every controller that a broker of these groups lists."""
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
    """Return which of these controllers may still run, and why.

    Only a refused connection proves that one is stopped: silence may be a broken network with a live controller behind it. For
    those in ``gone``, silence is enough.
    """
    asked = list(addresses)
    found = await asyncio.gather(*(_sign_of_life(calls, address, gone) for address in asked))
    return {address: sign for address, sign in zip(asked, found, strict=True) if sign is not None}


async def has_died(calls: JavaCalls, broker: str) -> bool:
    """Whether a broker's host refuses connections at its address."""
    try:
        await calls.broker_configuration(broker)
    except PortClosedError:
        return True
    except MigrationCallError:
        return False
    return False


async def _sign_of_life(calls: JavaCalls, address: str, gone: frozenset[str]) -> str | None:
    try:
        await calls.metadata(address)
    except PortClosedError:
        return None
    except MigrationCallError as error:
        return None if address in gone else str(error)
    return "it answers"
