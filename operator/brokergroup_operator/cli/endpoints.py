"""Reads `host:port`, and the name of a record store, as they stand on a command line."""

import typer

_HIGHEST_PORT = 65535


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Host and port; raises typer.BadParameter that names the option, the value and what was expected."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise typer.BadParameter(f"{text!r}: expected host:port", param_hint=option)
    return host, int(port)


def check_store(text: str) -> None:
    """Raises typer.BadParameter where it names no kind of record store."""
    from brokergroup_operator.records.stores import parse_store

    try:
        parse_store(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--store") from error
