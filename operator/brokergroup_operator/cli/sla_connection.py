"""The options by which the commands of `brokergroup sla` reach a Prometheus server: defined once, the same for each of them.

A secret is given as a file: the words of a command line are there for every process of the machine to read.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sla_reports.connection import Access


def reaches_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in the place of its argument `access`."""
    options = inspect.signature(_access).parameters
    own = [one for name, one in inspect.signature(command).parameters.items() if name != "access"]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        access = _access(**{name: values.pop(name) for name in options})
        command(**values, access=access)

    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(_access, include_extras=True)}
    run.__annotations__ = {name: hint for name, hint in hints.items() if name not in {"access", "return"}}
    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *options.values())]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run


def _access(  # noqa: PLR0913 - an option is an argument
    *,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", help="Of each request to the server, as 'X-Scope-OrgID: shop'; repeatable"),
    ] = None,
    header_file: Annotated[
        Path | None,
        typer.Option("--header-file", help="File of such headers, one a line: for those that hold a secret"),
    ] = None,
    user: Annotated[str, typer.Option("--user", help="For basic authentication, with --password-file")] = "",
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="File with the password of --user")
    ] = None,
    bearer_token_file: Annotated[
        Path | None, typer.Option("--bearer-token-file", help="File with the token the server asks for")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificates (PEM) that the server's is checked with")
    ] = None,
    cert_file: Annotated[
        Path | None, typer.Option("--cert-file", help="Certificate (PEM) that the server asks for")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="Its key, where it is not in --cert-file; without a password")
    ] = None,
    insecure_skip_verify: Annotated[
        bool, typer.Option("--insecure-skip-verify", help="Take any certificate of the server")
    ] = False,
) -> Access:
    return Access(
        tuple(headers or ()), header_file, user, password_file, bearer_token_file, ca_file, cert_file, key_file,
        insecure_skip_verify,
    )  # fmt: skip
