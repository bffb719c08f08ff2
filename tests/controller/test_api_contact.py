"""How long a plane knows itself without the Kubernetes API, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from brokergroup_operator.controller.detect.api_contact import (
    MOST_AT_A_TIME,
    NAME_THAT_NO_GROUP_HAS,
    PERIOD_SECONDS,
    READ_SECONDS,
    ApiContact,
    kubernetes_read,
)
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, error_from_status
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Api:
    """Answers each read after its latency, or fails it; a read without an answer fails at its deadline, as the client's do."""

    def __init__(self) -> None:
        self.latency = 0.1
        self.failure: ApiError | None = None
        self.begun: list[float] = []
        self.running = self.most = 0

    async def read(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        latency, failure = self.latency, self.failure
        try:
            await asyncio.sleep(min(latency, READ_SECONDS))
        finally:
            self.running -= 1
        if latency > READ_SECONDS:
            raise ApiUnavailableError("GET: no answer in time")
        if failure is not None:
            raise failure


@pytest.fixture
def server() -> Api:
    return Api()


@pytest.fixture
async def contact(server: Api) -> AsyncIterator[ApiContact]:
    made = ApiContact(server.read, clock=asyncio.get_running_loop().time)
    yield made
    await made.stop()


async def test_the_silence_counts_from_the_beginning_of_the_last_answered_read(
    server: Api, contact: ApiContact
) -> None:
    server.latency = 0.3
    assert contact.silence_seconds() == float("inf")
    contact.start()
    await asyncio.sleep(0.25)
    assert contact.silence_seconds() == float("inf"), "an earlier process reached it, this one has not"
    await asyncio.sleep(0.1)
    assert contact.silence_seconds() == pytest.approx(0.35)
    for _ in range(100):
        await asyncio.sleep(0.07)
        assert 0.3 <= contact.silence_seconds() <= PERIOD_SECONDS + server.latency + 0.01


async def test_an_api_that_does_not_answer_is_silent_and_is_asked_on(server: Api, contact: ApiContact) -> None:
    contact.start()
    await asyncio.sleep(10.2)
    server.latency = 1000.0
    since = server.begun[-1]
    await asyncio.sleep(60.0)
    assert contact.silence_seconds() == pytest.approx(asyncio.get_running_loop().time() - since)
    assert server.most == MOST_AT_A_TIME, "a server that hangs gets no flood"
    server.latency = 0.1
    await asyncio.sleep(READ_SECONDS)
    assert contact.silence_seconds() < 1.0


async def test_an_api_that_takes_seconds_is_reached(server: Api, contact: ApiContact) -> None:
    """No fence doubts it for as long as its bound, 4.5 s by default: it hears of a read up to two periods later."""
    server.latency = 3.4
    contact.start()
    await asyncio.sleep(4.0)
    for _ in range(100):
        await asyncio.sleep(0.13)
        assert contact.silence_seconds() <= server.latency + PERIOD_SECONDS + 0.01
    assert server.most <= MOST_AT_A_TIME


async def test_one_lost_read_holds_up_no_other(server: Api, contact: ApiContact) -> None:
    """Its connection may have died with an API server, of which there are others."""
    contact.start()
    await asyncio.sleep(0.6)
    for _ in range(10):
        server.latency = 1000.0
        await asyncio.sleep(PERIOD_SECONDS)
        server.latency = 0.1
        await asyncio.sleep(PERIOD_SECONDS)
        assert contact.silence_seconds() <= 2 * PERIOD_SECONDS + 0.2


async def test_a_read_that_is_answered_late_takes_nothing_back(server: Api, contact: ApiContact) -> None:
    contact.start()
    await asyncio.sleep(0.4)
    server.latency = 1.9
    await asyncio.sleep(PERIOD_SECONDS)
    server.latency = 0.1
    await asyncio.sleep(1.2)
    before = contact.silence_seconds()
    await asyncio.sleep(0.35)  # the slow one is answered
    assert contact.silence_seconds() < before + 0.36
    assert contact.silence_seconds() < 1.0


@pytest.mark.parametrize(
    ("status", "reason", "is_contact"),
    [
        (404, "NotFound", True),
        pytest.param(404, "", False, id="404 of a load balancer"),
        (403, "Forbidden", True),
        pytest.param(403, "", False, id="403 of a firewall"),
        (401, "Unauthorized", False),
        (429, "TooManyRequests", False),
        (500, "InternalError", False),
        (503, "ServiceUnavailable", False),
        (504, "Timeout", False),
        (None, "", False),
    ],
)
async def test_which_answers_show_contact(
    server: Api, contact: ApiContact, status: int | None, reason: str, *, is_contact: bool
) -> None:
    """An API server without etcd answers too, and by its answers no plane can elect."""
    said = {"reason": reason}
    server.failure = (
        ApiUnavailableError("no connection") if status is None else error_from_status("GET", status, said, write=False)
    )
    contact.start()
    await asyncio.sleep(5.2)
    assert (contact.silence_seconds() < 1.0) is is_contact


async def test_the_end_of_a_silence_is_known_with_the_first_answer(server: Api, contact: ApiContact) -> None:
    server.failure = ApiUnavailableError("503")
    contact.start()
    await asyncio.sleep(20.0)
    assert contact.silence_seconds() == float("inf")
    server.failure = None
    await asyncio.sleep(PERIOD_SECONDS + server.latency)
    assert contact.silence_seconds() <= PERIOD_SECONDS + server.latency + 0.01


async def test_after_its_stop_nothing_is_asked(server: Api, contact: ApiContact) -> None:
    contact.start()
    await asyncio.sleep(3.0)
    await contact.stop()
    begun = len(server.begun)
    await asyncio.sleep(3.0)
    assert len(server.begun) == begun


@pytest.mark.parametrize(("namespace", "asked_in"), [("shop", "shop"), (None, "default")])
async def test_the_read_asks_etcd_for_an_object_that_no_group_has(namespace: str | None, asked_in: str) -> None:
    """By the right that the record store needs, and within a deadline of its own."""
    api = mock.create_autospec(KubernetesApi, instance=True)
    await kubernetes_read(api, namespace)()
    api.get.assert_awaited_once_with(
        BROKER_GROUP_STATES, NAME_THAT_NO_GROUP_HAS, namespace=asked_in, timeout_seconds=READ_SECONDS
    )
