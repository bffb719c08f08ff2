"""Reads `host:port`, and the name of a record store, as they stand on a command line."""

import typer

from rocketmq_remoting.address import Address, AddressError


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Host and port to listen at; port 0 takes a free one. typer.BadParameter names the option, the value and what was expected."""
    found = _parsed(text, option, any_port=True)
    return found.host, found.port


def parse_address(text: str, option: str) -> str:
    """The address of a server to dial, in its one spelling. typer.BadParameter as above."""
    return str(_parsed(text, option, any_port=False))


def parse_addresses(text: str, option: str) -> str:
    """Addresses of servers, separated by semicolons, each in its one spelling. typer.BadParameter as above."""
    try:
        return ";".join(map(str, Address.parse_all(text, option)))
    except AddressError as error:
        raise typer.BadParameter(f"{text!r}: expected {error.expected}", param_hint=option) from None


def _parsed(text: str, option: str, *, any_port: bool) -> Address:
    try:
        return Address.parse(text, option, any_port=any_port)
    except AddressError as error:
        raise typer.BadParameter(f"{text!r}: expected {error.expected}", param_hint=option) from None


def check_store(text: str) -> None:
    """Raises typer.BadParameter where it names no kind of record store."""
    from brokergroup_operator.records.stores import parse_store

    try:
        parse_store(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--store") from error
