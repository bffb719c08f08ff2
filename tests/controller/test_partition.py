"""A master that is cut off is told apart from one that is frozen: a frozen one has a kernel that takes its connections."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import NO_ANSWER_WORDS, RAN_ON_WORDS, Cause, Trigger
from controller_core.settings import ControllerSettings
from tests.controller.test_corroboration import KillingFencer
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.controller.change.fencing import FenceOutcome
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from tests.controller.conftest import StartPlane
    from tests.support.fake_broker import FakeBroker, FakeGroup

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class Closed(Observer):
    def __init__(self) -> None:
        self.closed: list[FailoverTimeline] = []

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)


class Fencer(KillingFencer):
    """Finds whom it kills still running, as a kubelet tells of a pod that was cut off or frozen."""

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        outcome = await super().fence(binding, broker_id, address, deadline_seconds=deadline_seconds)
        return replace(outcome, how=f"pod orders-{broker_id} {RAN_ON_WORDS}")


@contextmanager
def nothing_answers_at(broker: FakeBroker) -> Iterator[None]:
    """Connections to its address are neither taken nor refused: what listens there has its queue full."""
    host, _, port = broker.address.rpartition(":")
    listener = broker._server._listener  # the connections it has must stay
    assert listener is not None
    listener._server.close()
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((host, int(port)))
        full.listen(0)
        for filling in (first, second):
            filling.settimeout(0)
            filling.connect_ex((host, int(port)))
        yield


async def _lost_master(start_plane: StartPlane, group: FakeGroup, *, cut_off: bool) -> FailoverTimeline:
    notes = Closed()
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), observer=notes, fencer=Fencer(group))
    group.planes = [plane.address]
    first, _, _ = await group.three()
    first.freeze()
    if cut_off:
        with nothing_answers_at(first):
            await eventually(lambda: notes.closed, what="the incident to be closed")
    else:
        await eventually(lambda: notes.closed, what="the incident to be closed")
    [incident] = notes.closed
    assert incident.trigger is Trigger.SILENCE
    assert not incident.unfenced
    return incident


@pytest.mark.real_time
async def test_a_master_at_whose_address_nothing_answers_and_that_runs_on_is_cut_off(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    incident = await _lost_master(start_plane, group, cut_off=True)
    assert NO_ANSWER_WORDS in incident.evidence
    assert incident.cause is Cause.PARTITION


async def test_a_frozen_master_is_not(start_plane: StartPlane, group: FakeGroup) -> None:
    incident = await _lost_master(start_plane, group, cut_off=False)
    assert NO_ANSWER_WORDS not in incident.evidence
    assert incident.cause is Cause.UNKNOWN
