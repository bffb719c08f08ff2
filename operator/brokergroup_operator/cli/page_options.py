"""The flags of the live page, and what they come to together."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from brokergroup_operator.cli.endpoints import parse_endpoint

if TYPE_CHECKING:
    from brokergroup_operator.page.live_page import PageSettings

PageListenOption = Annotated[
    str | None, typer.Option("--page-listen", help="host:port of the live page; absent: there is none")
]
PageAccessOption = Annotated[
    Literal["open", "token", "kubernetes"],
    typer.Option("--page-access", help="Whom the page lets in; 'open' only on a loopback address"),
]
PageTokenFileOption = Annotated[
    Path | None, typer.Option("--page-token-file", help="With 'token': the file that holds it", dir_okay=False)
]
PageTlsCertificateOption = Annotated[
    Path | None, typer.Option("--page-tls-certificate", help="Serve the page over TLS", exists=True, dir_okay=False)
]
PageTlsKeyOption = Annotated[Path | None, typer.Option("--page-tls-key", help="Its key", exists=True, dir_okay=False)]


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What was given."""

    listen: str | None
    access: str
    token_file: Path | None
    tls_certificate: Path | None
    tls_key: Path | None

    def settings(self, *, identity: str, served_namespace: str | None) -> PageSettings | None:
        """None where no page is asked for; typer.BadParameter for what does not go together."""
        from brokergroup_operator.page.access import AccessMode
        from brokergroup_operator.page.live_page import PageSettings

        if self.listen is None:
            return None
        host, port = parse_endpoint(self.listen, "--page-listen")
        try:
            return PageSettings(
                host=host,
                port=port,
                access=AccessMode(self.access),
                token_file=self.token_file,
                tls=self._tls(),
                identity=identity,
                served_namespace=served_namespace,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--page-listen") from error

    def _tls(self) -> ssl.SSLContext | None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise typer.BadParameter(
                f"certificate {self.tls_certificate}, key {self.tls_key}: expected both or neither",
                param_hint="--page-tls-certificate",
            )
        if self.tls_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except OSError as error:
            raise typer.BadParameter(
                f"{self.tls_certificate}: {error}; expected a certificate and its key in PEM",
                param_hint="--page-tls-certificate",
            ) from error
        return context
