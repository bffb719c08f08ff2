"""`brokergroup operator`: the options of the operator process, as a pod runs it and as the demo does."""

import asyncio
import os
import re
import socket
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from brokergroup_operator.api import names
from brokergroup_operator.cli.running import DrainSeconds, LogOptions, configure_logging, parse_address, parse_endpoint
from brokergroup_operator.cli.security_options import SecurityOptions
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from brokergroup_operator.page.live_page import PageSettings
    from brokergroup_operator.reconcile.settings import VersionCatalogue

DEFAULT_REPLICA_IMAGE = "brokergroup-operator:0.1.0"


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The options of the live page."""

    page_listen: Annotated[
        str | None, typer.Option("--page-listen", help="host:port of the live page; absent: there is none")
    ] = None
    page_access: Annotated[
        Literal["open", "token", "kubernetes"],
        typer.Option("--page-access", help="How the page checks viewers; 'open' only on a loopback address"),
    ] = "open"
    page_token_file: Annotated[
        Path | None, typer.Option("--page-token-file", help="With 'token': the file that holds it", dir_okay=False)
    ] = None
    page_tls_certificate: Annotated[
        Path | None,
        typer.Option("--page-tls-certificate", help="Serve the page over TLS", exists=True, dir_okay=False),
    ] = None
    page_tls_key: Annotated[
        Path | None, typer.Option("--page-tls-key", help="Its key", exists=True, dir_okay=False)
    ] = None

    def settings(self, *, identity: str, served_namespace: str | None) -> "PageSettings | None":
        """Return None without --page-listen. Raise typer.BadParameter for options that do not go together."""
        from brokergroup_operator.page.access import AccessMode
        from brokergroup_operator.page.live_page import PageSettings

        if self.page_listen is None:
            return None
        host, port = parse_endpoint(self.page_listen, "--page-listen")
        try:
            return PageSettings(
                host=host,
                port=port,
                access=AccessMode(self.page_access),
                token_file=self.page_token_file,
                tls=self._tls(),
                identity=identity,
                served_namespace=served_namespace,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--page-listen") from error

    def _tls(self) -> ssl.SSLContext | None:
        certificate, key = self.page_tls_certificate, self.page_tls_key
        if (certificate is None) != (key is None):
            raise typer.BadParameter(
                f"certificate {certificate}, key {key}: expected both or neither", param_hint="--page-tls-certificate"
            )
        if certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            raise typer.BadParameter(
                f"{certificate}: {error}; expected a certificate and its key in PEM",
                param_hint="--page-tls-certificate",
            ) from error
        return context


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """All options of the operator."""

    controller_addresses: Annotated[
        list[str],
        typer.Option("--controller-address", help="host:port at which brokers reach an operator pod; repeatable"),
    ]
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", help="Absent: the pod's service account", exists=True, dir_okay=False),
    ] = None
    namespace: Annotated[str | None, typer.Option("--namespace", help="Serve this namespace only")] = None
    listen: Annotated[str, typer.Option("--listen", help="host:port of the controller; [::] hears IPv6 and IPv4")] = (
        "[::]:9878"
    )
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", help="What this process calls itself; default: its own --controller-address"),
    ] = None
    metrics_listen: Annotated[str | None, typer.Option("--metrics-listen", help="host:port of /metrics")] = None
    incident_log: Annotated[Path | None, typer.Option("--incident-log", help="JSON lines, one a failover")] = None
    leader_election_namespace: Annotated[
        str | None, typer.Option("--leader-election-namespace", help="Where the Lease is; absent: reconcile always")
    ] = None
    lease_name: Annotated[
        str, typer.Option("--lease-name", help="The Lease; each release in one namespace needs its own")
    ] = names.DEFAULT_LEASE
    lease_seconds: Annotated[
        int,
        typer.Option(
            "--lease-seconds",
            min=3,
            max=300,
            help="The Lease's duration; the API server must answer within a third of it",
        ),
    ] = 3
    identity: Annotated[str | None, typer.Option("--identity", help="This process in the Lease")] = None
    replica_image: Annotated[str, typer.Option("--replica-image", help="Of Python brokers")] = DEFAULT_REPLICA_IMAGE
    rocketmq_image_repository: Annotated[
        str, typer.Option("--rocketmq-image-repository", help="Of Java brokers; the tag is spec.version")
    ] = "apache/rocketmq"
    rocketmq_version: Annotated[
        str, typer.Option("--rocketmq-version", help="Of Java brokers without spec.version")
    ] = "5.5.0"
    rocketmq_images: Annotated[
        list[str] | None,
        typer.Option(
            "--rocketmq-image", metavar="VERSION=IMAGE", help="The image of this version, such as one by digest"
        ),
    ] = None
    only_listed_versions: Annotated[
        bool, typer.Option("--only-listed-versions", help="Refuse a spec.version without an --rocketmq-image")
    ] = False
    security: SecurityOptions = field(default_factory=SecurityOptions)
    drain_seconds: DrainSeconds = 0.0
    max_groups_rolling: Annotated[
        int, typer.Option("--max-groups-rolling", min=0, help="Groups in a rolling update at one time; 0: no limit")
    ] = 1
    fence_key_secret: Annotated[
        str | None,
        typer.Option(
            "--fence-key-secret",
            help="Secret beside the Lease, made if it is missing: with it the fences in pods take orders to kill",
        ),
    ] = None
    brokers_without_pods: Annotated[
        bool,
        typer.Option("--brokers-without-pods", help="Hear unsigned brokers at addresses of no pod, for ids of no pod"),
    ] = False
    page: PageOptions = field(default_factory=PageOptions)
    log: LogOptions = field(default_factory=LogOptions)

    def catalogue(self) -> "VersionCatalogue":
        """Return the images by version. ValueError if they contradict each other; typer.BadParameter for another form."""
        from brokergroup_operator.api.versions import is_version
        from brokergroup_operator.reconcile.settings import VersionCatalogue

        pairs = [(text, *text.partition("=")) for text in self.rocketmq_images or []]
        for text, version, _, image in pairs:
            if not is_version(version) or not image:
                expected = "expected VERSION=IMAGE, like 5.5.0=apache/rocketmq:5.5.0"
                raise typer.BadParameter(f"{text!r}, {expected}", param_hint="--rocketmq-image")
        images = tuple((version, image) for _, version, _, image in pairs)
        return VersionCatalogue(
            repository=self.rocketmq_image_repository, images=images, only_listed=self.only_listed_versions
        )

    def checked(self) -> "OperatorOptions":
        """Return the options with addresses in their one spelling, and what follows from others filled in."""
        if self.fence_key_secret is not None and self.leader_election_namespace is None:
            expected = "expected --leader-election-namespace beside it: the Secret is kept there"
            raise typer.BadParameter(f"{self.fence_key_secret!r}, {expected}", param_hint="--fence-key-secret")
        _check_lease_name(self.lease_name)
        self._check_version()
        addresses = [parse_address(one, "--controller-address") for one in self.controller_addresses]
        identity = self.identity or os.environ.get("POD_NAME") or socket.gethostname()
        parse_endpoint(self.listen, "--listen")
        if self.metrics_listen:
            parse_endpoint(self.metrics_listen, "--metrics-listen")
        return replace(
            self,
            controller_addresses=addresses,
            identity=identity,
            advertise=parse_address(self.advertise, "--advertise")
            if self.advertise
            else own_address(identity, addresses),
        )

    def _check_version(self) -> None:
        from brokergroup_operator.reconcile.settings import checked_version

        try:
            checked_version(self.rocketmq_version, self.catalogue())
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--rocketmq-version or --rocketmq-image") from error


def _check_lease_name(name: str) -> None:
    from brokergroup_operator.api.bounds import LONGEST_OBJECT_NAME, OBJECT_NAME_PATTERN

    if len(name) > LONGEST_OBJECT_NAME or not re.fullmatch(OBJECT_NAME_PATTERN, name):
        expected = f"expected an object's name, like {names.DEFAULT_LEASE}"
        raise typer.BadParameter(f"{name!r}, {expected}", param_hint="--lease-name")


def own_address(identity: str, controller_addresses: list[str]) -> str:
    """Return the controller address that leads to this pod, by the ordinal at the end of a StatefulSet pod's name.

    A pod that advertised another pod's address would send brokers there.
    """
    if len(controller_addresses) == 1:
        return controller_addresses[0]
    ordinal = identity.rpartition("-")[2]
    if ordinal.isdecimal() and int(ordinal) < len(controller_addresses):
        return controller_addresses[int(ordinal)]
    raise typer.BadParameter(
        f"identity {identity!r} ends in no ordinal below {len(controller_addresses)}; expected --advertise host:port",
        param_hint="--advertise",
    )


@with_option_groups
def operator(options: OperatorOptions) -> None:
    """Run the controller plane and the reconcile plane until SIGTERM."""
    from brokergroup_operator.cli.operator_process import run_operator
    from brokergroup_operator.cli.running import run_until_signalled
    from brokergroup_operator.kube.errors import ApiError
    from brokergroup_operator.kube.settings import KubeconfigError

    configure_logging(options.log)
    options = options.checked()
    security = options.security.settings(brokers_without_pods=options.brokers_without_pods)
    page = options.page.settings(identity=str(options.identity), served_namespace=options.namespace)

    async def run(stop: asyncio.Event) -> None:
        await run_operator(options, security, page, stop)

    try:
        run_until_signalled(run)
    except KubeconfigError as error:
        raise typer.BadParameter(str(error), param_hint="--kubeconfig") from error
    except ApiError as error:
        # Only the start asks the API once; the running operator retries. The kubelet restarts a pod that ended here.
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
