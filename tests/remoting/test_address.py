"""The one address type: what it takes and refuses, which texts are one address; and both families at a server and a client."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_remoting.address import (
    Address,
    AddressError,
    heard_address,
    host_of,
    ip_of_family,
    join_address,
    local_address,
    one_spelling,
    plain_host,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.serialization import parse_int32
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.connection import RemotingConnection

TAKEN = {
    "[::1]:9876": "[::1]:9876", "[fd00::10]:9876": "[fd00::10]:9876", "[FD00:0:0:0:0:0:0:10]:9876": "[fd00::10]:9876",
    "[2001:db8:0:0:1:0:0:1]:1": "[2001:db8::1:0:0:1]:1", "[fe80::1%eth0]:9876": "[fe80::1%eth0]:9876",
    "[::ffff:10.0.0.1]:9876": "10.0.0.1:9876", "[::]:9878": "[::]:9878", "10.0.0.1:65535": "10.0.0.1:65535",
    "NameServer.Team.svc:9876": "nameserver.team.svc:9876",
    "ns.svc.cluster.local.:9876": "ns.svc.cluster.local.:9876",
    "my_ns-0:1": "my_ns-0:1", "localhost:1": "localhost:1",
}  # fmt: skip
REFUSED = (
    "", ":", ":9876", "a", "[::1]", "[::1]:", "[::1:1", "::1]:1", "[::1]1:1", "[a]:1", "[10.0.0.1]:1", "[]:1", "[::1%eth0]:1",
    "[fe80::1%]:1", "[fe80::1%a b]:1", "[1:2:3:4:5:6:7:8:9]:1", "[:::1]:1", "10.0.0.300:1", "10.0.0:1", "1:1", "a..b:1", ".a:1",
    "-a:1", "a-:1", " a:1", "a:1 ", "a b:1", "a:\n1", "a:0", "a:65536", "a:99999", "a:-1", "a:+1", "a:01", "a:1e3", "a:\u0661",
    "\u00e9:1", "a:1;b:2", "http://a:1", "user@a:1", f"{'a' * 64}:1", f"{'a.' * 130}:1",
)  # fmt: skip


def test_addresses_that_are_taken() -> None:
    for text, printed in TAKEN.items():
        address = Address.parse(text, "field")
        assert str(address) == printed
        assert Address.parse(str(address), "field") == address == heard_address(text), text


def refusal(text: str, field: str) -> str:
    try:
        Address.parse(text, field)
    except AddressError as error:
        return str(error)
    return "accepted"


def test_it_refuses_and_names_field_value_and_form() -> None:
    for text in REFUSED:
        start = f"spec.nameServers[0] is {text[:300]!r}, expected host:port, an IPv6 address in"
        assert refusal(text, "spec.nameServers[0]").startswith(start), text


def test_an_ipv6_address_without_brackets_is_refused_with_the_places_where_they_may_belong() -> None:
    for text, advice in {
        "::1:9876": "[::1]:9876 or [::1:9876]:<port>",
        "fd00::10:9876": "[fd00::10]:9876 or [fd00::10:9876]:<port>",
        "::1": "[::1]:<port>",
        "2001:db8:0:0:0:0:0:1:10911": "[2001:db8:0:0:0:0:0:1]:10911",
        "::ffff:10.0.0.1:9876": "[::ffff:10.0.0.1]:9876",
    }.items():
        assert refusal(text, "--listen") == f"--listen is {text!r}, expected an IPv6 address in brackets: {advice}"


def test_port_0_is_for_a_listener_alone() -> None:
    assert Address.parse("[::1]:0", "--listen", any_port=True).port == 0
    with pytest.raises(AddressError, match="from 1 to 65535"):
        Address.parse("[::1]:0", "--name-server")


def test_a_list_is_what_rocketmq_writes() -> None:
    found = Address.parse_all("[FD00::1]:9876; 10.0.0.1:9876;ns:9876;", "namesrvAddr")
    assert ";".join(map(str, found)) == "[fd00::1]:9876;10.0.0.1:9876;ns:9876"
    with pytest.raises(AddressError, match="namesrvAddr is 'fd00::1:9876'"):
        Address.parse_all("10.0.0.1:9876;fd00::1:9876", "namesrvAddr")


def test_equal_addresses_are_one_key() -> None:
    same = ("[fd00:0::10]:1", "[FD00::0010]:1", "[fd00:0:0:0:0:0:0:10]:1")
    assert len({Address.parse(text, "f") for text in same}) == 1
    assert Address.parse("[::ffff:10.0.0.1]:1", "f") == Address.parse("10.0.0.1:1", "f")
    assert Address.parse("Ns.x.:1", "f") == Address.parse("ns.X:1", "f")
    assert Address.parse("[fe80::1%eth0]:1", "f") != Address.parse("[fe80::1%eth1]:1", "f")
    assert Address.parse("a:1", "f") != Address.parse("a:2", "f")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("/[0:0:0:0:0:0:0:1]:10911", "::1", 10911),  # Java's toString, from JDK 14 on
        ("/0:0:0:0:0:0:0:1:10911", "::1", 10911),  # and before
        ("fd00:0:0:0:0:0:0:10:9876", "fd00::10", 9876),  # NetworkUtil.socketAddress2String
        ("fd00::5:10911", "fd00::5", 10911),  # a brokerIP1 without brackets
        ("/[fe80:0:0:0:0:0:0:1%eth0]:1", "fe80::1%eth0", 1),
        ("node/10.0.0.1:40001", "10.0.0.1", 40001),
        ("/::ffff:10.0.0.1:7", "10.0.0.1", 7),
        ("[fd00::5]:010911", "fd00::5", 10911),  # respelled, for a Java slave that would keep its link
        ("broker-0.ns:10911", "broker-0.ns", 10911),
    ],
)
def test_what_a_peer_writes_is_cut_at_the_last_colon(text: str, host: str, port: int) -> None:
    found = heard_address(text)
    assert found is not None
    assert (found.host, found.port, host_of(text)) == (host, port, host)


def test_what_is_no_address_of_a_peer_is_none() -> None:
    for text in ("", "x", ":", ":1", "a:", "a:0", "a:65536", "a:b", "a:-1", "a:1234567", "[]:1", "fd00::5", "a:b:1"):
        assert heard_address(text) is None, text


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("[2001:DB8:0::1]:10911", "[2001:db8::1]:10911"),
        ("2001:db8:0:0:0:0:0:1:10911", "[2001:db8::1]:10911"),
        ("::ffff:10.0.0.1:10911", "10.0.0.1:10911"),
        ("10.0.0.1:010911", "10.0.0.1:010911"),
        ("Broker-A:10911", "Broker-A:10911"),
        ("x", "x"),
        ("", ""),
    ],
)
def test_a_registration_keeps_all_but_the_spelling_of_its_ip(text: str, spelled: str) -> None:
    assert one_spelling(text) == spelled


def test_of_a_pods_addresses_the_one_of_the_family_is_used() -> None:
    assert ip_of_family("10.0.0.1,fd00::5", "IPv6") == "fd00::5"
    assert ip_of_family("fd00::5,10.0.0.1", "IPv4") == "10.0.0.1"
    assert ip_of_family("10.0.0.1, fd00::5", "") == "10.0.0.1"
    assert ip_of_family("10.0.0.1", "IPv6") == "10.0.0.1"
    assert ip_of_family("", "IPv6") == ""


def test_a_connection_is_bound_to_an_address_of_the_family_that_it_dials() -> None:
    assert local_address("fd00::5", is_v6=True) == ("fd00::5", 0)
    assert local_address("10.0.0.1", is_v6=True) is None
    assert local_address("fd00::5", is_v6=False) is None
    assert local_address("::", is_v6=True) is None
    assert local_address(None, is_v6=False) is None


@pytest.mark.parametrize("read", [heard_address, host_of, one_spelling, plain_host, parse_int32])
@pytest.mark.parametrize("text", ["{}", "{}:10911", "[{}]:1"])
def test_a_text_longer_than_any_address_or_number_is_not_kept(read: Callable[[str], object], text: str) -> None:
    """An unknown caller may send 64 KiB in one field, a pod 1 MiB, and each time another text: 4,096 of them were kept."""
    sent = text.format("7" * 65_000)
    references = sys.getrefcount(sent)
    read(sent)
    assert sys.getrefcount(sent) == references


@given(st.ip_addresses(), st.integers(1, 65535))
def test_any_ip_address_is_read_back_as_it_was_printed(ip: object, port: int) -> None:
    printed = join_address(plain_host(str(ip)), port)
    parsed = Address.parse(printed, "f")
    assert str(parsed) == printed == one_spelling(printed)
    assert parsed == heard_address(f"/{ip}:{port}")


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    heard_address(text)
    one_spelling(text)
    try:
        address = Address.parse(text, "f")
    except AddressError:
        return
    assert Address.parse(str(address), "f") == address


class SaysPeer(QuietHandler):
    """Answers with the host that it sees."""

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return command.answer(0, remark=connection.peer_host)


async def test_a_wildcard_hears_both_families_and_sees_an_ipv4_peer_by_its_own_address(ipv6_loopback: str) -> None:
    server, client = RemotingServer(SaysPeer()), RemotingClient()
    await server.start("::", 0)
    try:
        assert server.address == f"[::]:{server.port}"
        seen = [
            (await client.invoke(join_address(host, server.port), request(1), timeout_seconds=5.0)).remark
            for host in (ipv6_loopback, "127.0.0.1")
        ]
        assert seen == [ipv6_loopback, "127.0.0.1"]
    finally:
        await client.close()
        await server.stop(grace_seconds=0.1)


async def test_a_client_bound_to_one_family_reaches_a_server_of_the_other(ipv6_loopback: str) -> None:
    """A pod of both families: bound to its IPv6 address it could dial no controller that has an IPv4 one."""
    server, client = RemotingServer(SaysPeer()), RemotingClient(local_host=ipv6_loopback)
    await server.start("127.0.0.1", 0)
    try:
        assert (await client.invoke(server.address, request(1), timeout_seconds=5.0)).remark == "127.0.0.1"
    finally:
        await client.close()
        await server.stop(grace_seconds=0.1)


async def test_without_ipv6_in_the_kernel_the_wildcard_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = RemotingServer(SaysPeer())
    await server.start("::", 0)
    assert server.host == "0.0.0.0"
    await server.stop(grace_seconds=0.1)
