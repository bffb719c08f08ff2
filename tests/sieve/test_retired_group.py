"""The law of the story `retire` finds a message that was acknowledged and deleted unread; a closed group acknowledges none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.sieve.cluster import CONTROLLER, MESSAGES
from tests.sieve.retired_group import BrokerWithTopic, Clients
from tests.support.fake_broker import FakeGroup

if TYPE_CHECKING:
    from tests.sieve.world import World

DELETED = {"kind": "BrokerGroup", "metadata": {"deletionTimestamp": "2026-11-30T00:00:00Z"}}


def clients_of_two() -> tuple[Clients, Any, BrokerWithTopic]:
    """A master and a slave in sync, both with one message that was read."""
    group = FakeGroup(CONTROLLER)
    for number in (1, 2):
        group.brokers[number] = BrokerWithTopic(group, broker_id=number, max_offset=MESSAGES)
    master = cast("BrokerWithTopic", group.brokers[1])
    master.is_master, master.linked, master.sync_state_set = True, {2}, {1, 2}
    storage = SimpleNamespace(listeners=[])
    world = SimpleNamespace(
        node=SimpleNamespace(group=group),
        server=SimpleNamespace(store=SimpleNamespace(storage=storage)),
        laws_broken=[],
    )
    clients = Clients(cast("World", world))
    clients._send(master)
    clients._read(master)
    return clients, world, master


def delete(world: Any) -> None:
    (committed,) = world.server.store.storage.listeners
    committed(None, None, SimpleNamespace(type="MODIFIED", version=SimpleNamespace(obj=DELETED)))


@pytest.mark.parametrize(
    ("before", "after", "law"),
    [
        ([], [], None),
        (["send"], [], "deleted with acknowledged messages that no consumer has read: [1]"),
        (["send", "read"], [], None),
        ([], ["send"], "message 1 was acknowledged after the deletion"),
        (["close", "send"], ["send"], None),
    ],
)
async def test_what_breaks_the_law(before: list[str], after: list[str], law: str | None) -> None:
    clients, world, master = clients_of_two()

    def act(what: str) -> None:
        if what == "close":
            master.minimum = 99
        else:
            (clients._send if what == "send" else clients._read)(master)

    for one in before:
        act(one)
    delete(world)
    for one in after:
        act(one)
    assert world.laws_broken == ([] if law is None else [law])
    assert clients.refused == (2 if "close" in before else 0)


async def test_a_send_is_acknowledged_by_as_many_as_the_minimum_says() -> None:
    clients, world, master = clients_of_two()
    world.node.group.brokers[2].dead = True
    clients._send(master)
    assert (clients.acknowledged, clients.refused, master.queue_end) == ([0], 1, 1)
