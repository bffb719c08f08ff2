"""The command lines: what they refuse, with which words, and which address a pod calls its own."""

import pytest
import typer
from typer.testing import CliRunner

from brokergroup_operator.cli.endpoints import parse_endpoint
from brokergroup_operator.cli.main import app
from brokergroup_operator.cli.operator_command import own_address

ADDRESSES = ["operator-0.ns.svc:9878", "operator-1.ns.svc:9878"]


def test_every_subcommand_explains_itself() -> None:
    for command in ("operator", "controller", "replica", "sandbox", "demo"):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("text", ["9878", "localhost:", ":9878", "localhost:port", "localhost:65536"])
def test_what_is_no_endpoint_is_refused_with_its_option_and_value(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected host:port") as refused:
        parse_endpoint(text, "--listen")
    assert text in refused.value.message
    assert refused.value.param_hint == "--listen"


def test_an_ipv6_endpoint_keeps_its_brackets() -> None:
    assert parse_endpoint("[::1]:9878", "--listen") == ("[::1]", 9878)


def test_a_pod_advertises_the_address_of_its_own_ordinal() -> None:
    assert own_address("operator-1", ADDRESSES) == ADDRESSES[1]
    assert own_address("anything", ADDRESSES[:1]) == ADDRESSES[0]


@pytest.mark.parametrize("identity", ["operator-2", "laptop"])
def test_a_pod_that_cannot_tell_its_address_says_so(identity: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected --advertise host:port"):
        own_address(identity, ADDRESSES)


def test_a_bad_store_is_named() -> None:
    result = CliRunner().invoke(app, ["controller", "--store", "etcd", "--listen", "127.0.0.1:0"])
    assert result.exit_code == 2
    assert "store is 'etcd', expected memory or file:<folder>" in " ".join(result.output.split())
