"""The parts without processes: expansion, mount paths, images, address counter."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from kube_sandbox.kubelet.environment import Image, ImageCatalogue, expand, mount_rewriter
from kube_sandbox.kubelet.network import AddressCounter, AddressesUsedUpError, LoopbackNetwork


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/rocketmq", "/h/config"),
        ("/etc/rocketmq/broker.conf", "/h/config/broker.conf"),
        ("--config=/etc/rocketmq/broker.conf", "--config=/h/config/broker.conf"),
        ('sed s/a/b/ "/etc/rocketmq/a" > /var/lib/store/b', 'sed s/a/b/ "/h/config/a" > /h/store/b'),
        ("/etc/rocketmq/lib/*:/var/lib/store/*", "/h/config/lib/*:/h/store/*"),
        ("/etc/rocketmq-old", "/etc/rocketmq-old"),
        ("/other/etc/rocketmq", "/other/etc/rocketmq"),
        ("/etc/rocketmq/deep/x", "/h/deep/x"),
        ("https://host/etc/rocketmq", "https://host/etc/rocketmq"),
    ],
)
def test_mount_paths(text: str, expected: str) -> None:
    mounts = {
        "/etc/rocketmq": Path("/h/config"),
        "/etc/rocketmq/deep": Path("/h/deep"),
        "/var/lib/store/": Path("/h/store"),
    }
    assert mount_rewriter(mounts)(text) == expected


def test_the_first_fitting_image_wins_and_added_ones_go_first() -> None:
    catalogue = ImageCatalogue({"a:*": Image(entrypoint=("first",)), "*": Image(entrypoint=("any",))})
    assert catalogue.find("a:1").entrypoint == ("first",)
    assert catalogue.find("b").entrypoint == ("any",)


def test_addresses_come_in_turn_skip_the_used_and_go_on_after_a_restart(tmp_path: Path) -> None:
    network = ipaddress.IPv4Network("10.0.0.0/29")
    counter = AddressCounter(network, tmp_path / "next")
    assert [counter.next_address(set()) for _ in range(2)] == ["10.0.0.2", "10.0.0.3"]
    again = AddressCounter(network, tmp_path / "next")
    assert again.next_address({"10.0.0.4"}) == "10.0.0.5"
    assert [again.next_address(set()) for _ in range(3)] == ["10.0.0.6", "10.0.0.2", "10.0.0.3"]


def test_no_address_left_is_an_error(tmp_path: Path) -> None:
    counter = AddressCounter(ipaddress.IPv4Network("10.0.0.0/30"), tmp_path / "next")
    with pytest.raises(AddressesUsedUpError, match="all 1 addresses"):
        counter.next_address({"10.0.0.2"})


async def test_two_sandboxes_on_one_machine_never_hold_the_same_address() -> None:
    small = ipaddress.IPv4Network("127.100.0.0/29")
    one, two = LoopbackNetwork(small), LoopbackNetwork(small)
    try:
        addresses = [(await network.attach(uid)).ip for uid in "abc" for network in (one, two)]
        assert len(set(addresses)) == 6
        with pytest.raises(AddressesUsedUpError):
            await one.attach("d")
    finally:
        await one.close()
        await two.close()
