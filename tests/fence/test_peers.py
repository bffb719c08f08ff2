"""The UDP half of the fence against whoever reaches its port: it needs no key, so it must not be able to do anything."""

from __future__ import annotations

import select
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.fence.datagrams import Peers, Word
from brokergroup_operator.fence.decide import Member
from brokergroup_operator.fence.settings import FENCE_PORT_OFFSET
from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"


@pytest.fixture
def peers() -> Iterator[Peers]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    made = Peers(Address(HOST, port), "orders", lambda _: None)
    yield made
    made.close()


class Flood:
    """A socket that always has one more datagram; after too many of them the test ends instead of going on for ever."""

    def __init__(self, datagram: bytes | OSError) -> None:
        self._datagram = datagram
        self.taken = 0

    def recvfrom(self, _: int) -> tuple[bytes, tuple[str, int]]:
        self.taken += 1
        assert self.taken < 10_000, (
            "the fence does nothing else any more: it kills nobody, or, once it comes back, a healthy one"
        )
        if isinstance(self._datagram, OSError):
            raise self._datagram
        return self._datagram, (HOST, 9)

    def sendto(self, _: bytes, __: tuple[str, int]) -> None:
        """Answers go nowhere."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    "datagram",
    [struct.pack(">4s8si", b"BGQ1", b"anything", 1) + b"orders", b"BGA1" + bytes(12), b"", OSError("ICMP")],
    ids=["questions", "answers", "nothing", "refusals"],
)
def test_a_flood_does_not_keep_the_fence_from_looking(
    peers: Peers, datagram: bytes | OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.close()
    monkeypatch.setattr(peers, "socket", Flood(datagram))
    assert peers.read(own_id=1, hears_none_for_seconds=1.0) == []


def test_who_was_not_asked_is_not_believed(peers: Peers) -> None:
    """Neither a guessed nonce nor one that was used already."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        other.settimeout(5)
        peers.ask(Member(2, f"{HOST}:{other.getsockname()[1] - 2}", in_sync=True, alive=True), now=7.0)
        nonce = other.recv(2048)[4:12]
        at = peers.socket.getsockname()
        other.sendto(b"BGA1" + bytes(8) + struct.pack(">I", 60_000), at)
        assert peers.read(own_id=1, hears_none_for_seconds=1.0) == []
        for expected in ([(2, 7.0, 60.0)], []):
            other.sendto(b"BGA1" + nonce + struct.pack(">I", 60_000), at)
            assert peers.read(own_id=1, hears_none_for_seconds=1.0) == expected


def test_the_network_policy_of_the_docs_lets_the_fences_of_a_group_hear_each_other_and_the_operator() -> None:
    """It was written before there was a fence. Without UDP no excuse is ever heard, and a restart of all operators kills."""
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "security.md").read_text(encoding="utf-8")
    [text] = [part for part in page.split("```yaml\n")[1:] if "kind: NetworkPolicy" in part.split("```")[0]]
    policy = yaml.safe_load(text.split("```")[0])["spec"]
    port = {"port": 10911 + FENCE_PORT_OFFSET, "protocol": "UDP"}
    fences, operators = (one["from"] for one in policy["ingress"] if port in one["ports"])
    assert fences == [{"podSelector": policy["podSelector"]}]
    labels = {names.LABEL_COMPONENT: names.COMPONENT_OPERATOR}
    assert operators == [{"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}]


def test_where_addresses_lead_to_no_fence_the_pods_are_asked_and_only_the_right_one_answers() -> None:
    """Members behind load balancers: nobody answers at the advertised address, which may even be a name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    hosts = tuple(f"127.77.1.{one}" for one in (1, 2, 3))
    fences = [Peers(Address(host, port), "orders", lambda _: None) for host in hosts]
    asker = Peers(Address("127.77.1.9", port), "orders", lambda _: None)
    try:
        for address in (f"203.0.113.2:{port - FENCE_PORT_OFFSET}", f"lb-2.example.org:{port - FENCE_PORT_OFFSET}"):
            asker.ask(Member(2, address, in_sync=True, alive=True), now=5.0, pods=hosts)
            for broker_id, fence in enumerate(fences, start=1):
                _read_one(fence, broker_id)
            words = _read_one(asker, 9)
            assert [(word.broker_id, word.asked_at, word.hears_none_for_seconds) for word in words] == [(2, 5.0, 4.0)]
            assert asker.read(own_id=9, hears_none_for_seconds=4.0) == []
    finally:
        for one in (*fences, asker):
            one.close()


def _read_one(of: Peers, own_id: int) -> list[Word]:
    """What the next datagrams say; waits for the first one."""
    ready, _, _ = select.select([of.socket], [], [], 5.0)
    assert ready, "nobody asked, or answered"
    return of.read(own_id=own_id, hears_none_for_seconds=4.0)
