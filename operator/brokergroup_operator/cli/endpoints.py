"""Reads `host:port` as it stands on a command line."""

import typer

_HIGHEST_PORT = 65535


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Host and port; raises typer.BadParameter that names the option, the value and what was expected."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise typer.BadParameter(f"{text!r}: expected host:port", param_hint=option)
    return host, int(port)
