"""The controllers that brokers list: changed by UPDATE_BROKER_CONFIG (25), and how one knows that the change is in use.

A broker takes the new text at once and looks at it every 120 s, counted from its own start (measured on 5.5.0: 51, 60 and 70 s
after the change for three brokers started 9 s apart, the rest of their own two minutes each). Within the next 3 s it connects to
what is new and drops what is gone. So a controller that no old list names hears a broker for the first time exactly when that
broker has dropped everybody its new list does not name: that is seen, not assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.migrate.java_calls import JavaCalls, MigrationCallError
from brokergroup_operator.migrate.java_state import BrokerSaid
from rocketmq_remoting.address import one_spelling

if TYPE_CHECKING:
    from collections.abc import Mapping

# A broker reads its list every 120 s, then tests connections every 3 s, and must be heard once.
RE_READ_SECONDS = 120.0
LIST_DEADLINE_SECONDS = RE_READ_SECONDS + 3.0 + 12.0


def split_list(text: str) -> tuple[str, ...]:
    """The addresses of a ``controllerAddr``, each in its one spelling."""
    return tuple(one_spelling(part.strip()) for part in text.split(";") if part.strip())


def reachable(brokers: Mapping[int, BrokerSaid | str]) -> dict[int, BrokerSaid]:
    """Those who answered."""
    return {broker_id: said for broker_id, said in brokers.items() if isinstance(said, BrokerSaid)}


def who_lists(brokers: Mapping[int, BrokerSaid | str], address: str) -> frozenset[int]:
    """Whose configuration names this controller already; it may not be in use yet."""
    return frozenset(
        broker_id for broker_id, said in reachable(brokers).items() if address in split_list(said.listed_controllers)
    )


def cannot_take(brokers: Mapping[int, BrokerSaid | str], controller_list: str) -> list[str]:
    """Why brokers cannot use this list; nothing if they can. With a DNS look-up it is one name for all."""
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
    """Give every broker that answered the same list; returns why not, for those who refused it."""
    failed: dict[int, str] = {}
    for broker_id, said in sorted(reachable(brokers).items()):
        try:
            await calls.list_controllers(said.address, controller_address)
        except MigrationCallError as error:
            failed[broker_id] = str(error)
    return failed


async def restore_lists(calls: JavaCalls, brokers: Mapping[int, BrokerSaid | str]) -> dict[int, str]:
    """Give every broker the list it had when it was asked."""
    failed: dict[int, str] = {}
    for broker_id, said in sorted(reachable(brokers).items()):
        try:
            await calls.list_controllers(said.address, said.listed_controllers)
        except MigrationCallError as error:
            failed[broker_id] = str(error)
    return failed
