"""`brokergroup operator`: the operator process, as a pod runs it and as the demo does."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Annotated

import typer

from brokergroup_operator.api import names
from brokergroup_operator.cli.endpoints import parse_address, parse_endpoint
from brokergroup_operator.cli.logging_options import LogFormatOption, LogLevelOption, configure_logging
from brokergroup_operator.cli.page_options import (
    PageAccessOption,
    PageListenOption,
    PageOptions,
    PageTlsCertificateOption,
    PageTlsKeyOption,
    PageTokenFileOption,
)
from brokergroup_operator.cli.security_options import (
    AdminCertificateNamesOption,
    AdminCredentialsOption,
    BrokerTlsOption,
    ConfigurationReadableOption,
    DrainSecondsOption,
    NameServerTlsOption,
    SecurityOptions,
    TlsCaOption,
    TlsCertificateOption,
    TlsClientCertificatesOption,
    TlsKeyOption,
    TlsModeOption,
)
from rocketmq_remoting.tls import ClientCertificates

DEFAULT_REPLICA_IMAGE = "brokergroup-operator:0.1.0"


def operator(  # noqa: PLR0913 - one argument a flag
    *,
    controller_addresses: Annotated[
        list[str],
        typer.Option("--controller-address", help="host:port at which brokers reach an operator pod; repeatable"),
    ],
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", help="Absent: the pod's service account", exists=True, dir_okay=False),
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Serve this namespace only")] = None,
    listen: Annotated[
        str, typer.Option("--listen", help="host:port of the controller; [::] hears IPv6 and IPv4")
    ] = "[::]:9878",
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", help="What this process calls itself; default: its own --controller-address"),
    ] = None,
    metrics_listen: Annotated[str | None, typer.Option("--metrics-listen", help="host:port of /metrics")] = None,
    incident_log: Annotated[Path | None, typer.Option("--incident-log", help="JSON lines, one a failover")] = None,
    leader_election_namespace: Annotated[
        str | None, typer.Option("--leader-election-namespace", help="Where the Lease is; absent: reconcile always")
    ] = None,
    lease_name: Annotated[
        str, typer.Option("--lease-name", help="The Lease; each release in one namespace needs its own")
    ] = names.DEFAULT_LEASE,
    lease_seconds: Annotated[
        int,
        typer.Option(
            "--lease-seconds",
            min=3,
            max=300,
            help="The Lease's duration; the API server must answer within a third of it",
        ),
    ] = 3,
    identity: Annotated[str | None, typer.Option("--identity", help="This process in the Lease")] = None,
    replica_image: Annotated[str, typer.Option("--replica-image", help="Of Python brokers")] = DEFAULT_REPLICA_IMAGE,
    rocketmq_image_repository: Annotated[
        str, typer.Option("--rocketmq-image-repository", help="Of Java brokers; the tag is spec.version")
    ] = "apache/rocketmq",
    rocketmq_version: Annotated[
        str, typer.Option("--rocketmq-version", help="Of Java brokers without spec.version")
    ] = "5.5.0",
    tls_mode: TlsModeOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    tls_client_certificates: TlsClientCertificatesOption = ClientCertificates.NONE,
    broker_tls: BrokerTlsOption = False,
    name_server_tls: NameServerTlsOption = False,
    admin_credentials: AdminCredentialsOption = None,
    admin_certificate_names: AdminCertificateNamesOption = None,
    configuration_readable: ConfigurationReadableOption = False,
    drain_seconds: DrainSecondsOption = 0.0,
    max_groups_rolling: Annotated[
        int, typer.Option("--max-groups-rolling", min=0, help="Groups in a rolling update at one time; 0: no limit")
    ] = 1,
    fence_key_secret: Annotated[
        str | None,
        typer.Option(
            "--fence-key-secret",
            help="Secret beside the Lease, made if it is missing: with it the fences in pods take orders to kill",
        ),
    ] = None,
    brokers_without_pods: Annotated[
        bool,
        typer.Option("--brokers-without-pods", help="Hear unsigned brokers at addresses of no pod, for ids of no pod"),
    ] = False,
    page_listen: PageListenOption = None,
    page_access: PageAccessOption = "open",
    page_token_file: PageTokenFileOption = None,
    page_tls_certificate: PageTlsCertificateOption = None,
    page_tls_key: PageTlsKeyOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Run the controller plane and the reconcile plane until SIGTERM."""
    from brokergroup_operator.api.bounds import LONGEST_OBJECT_NAME, OBJECT_NAME_PATTERN
    from brokergroup_operator.cli.operator_process import OperatorSettings, run_operator
    from brokergroup_operator.cli.signals import run_until_signalled
    from brokergroup_operator.kube.errors import ApiError
    from brokergroup_operator.kube.settings import KubeconfigError

    configure_logging(log_level, log_format)
    if fence_key_secret is not None and leader_election_namespace is None:
        expected = "expected --leader-election-namespace beside it: the Secret is kept there"
        raise typer.BadParameter(f"{fence_key_secret!r}, {expected}", param_hint="--fence-key-secret")
    if len(lease_name) > LONGEST_OBJECT_NAME or not re.fullmatch(OBJECT_NAME_PATTERN, lease_name):
        raise typer.BadParameter(
            f"{lease_name!r}, expected an object's name, like {names.DEFAULT_LEASE}", param_hint="--lease-name"
        )
    controller_addresses = [parse_address(one, "--controller-address") for one in controller_addresses]
    if advertise:
        advertise = parse_address(advertise, "--advertise")
    security = SecurityOptions(
        tls_mode=tls_mode,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_client_certificates=tls_client_certificates,
        broker_tls=broker_tls,
        name_server_tls=name_server_tls,
        admin_credentials=admin_credentials,
        admin_certificate_names=admin_certificate_names,
        configuration_readable=configuration_readable,
        brokers_without_pods=brokers_without_pods,
    ).settings()
    own_identity = identity or os.environ.get("POD_NAME") or socket.gethostname()
    settings = OperatorSettings(
        kubeconfig=kubeconfig,
        namespace=namespace,
        listen=parse_endpoint(listen, "--listen"),
        advertise=advertise or own_address(own_identity, controller_addresses),
        controller_addresses=tuple(controller_addresses),
        metrics_listen=parse_endpoint(metrics_listen, "--metrics-listen") if metrics_listen else None,
        incident_log=incident_log,
        leader_election_namespace=leader_election_namespace,
        lease_name=lease_name,
        lease_seconds=lease_seconds,
        identity=own_identity,
        replica_image=replica_image,
        rocketmq_image_repository=rocketmq_image_repository,
        rocketmq_version=rocketmq_version,
        security=security,
        drain_seconds=drain_seconds,
        max_groups_rolling=max_groups_rolling,
        fence_key_secret=fence_key_secret,
        page=PageOptions(
            listen=page_listen,
            access=page_access,
            token_file=page_token_file,
            tls_certificate=page_tls_certificate,
            tls_key=page_tls_key,
        ).settings(identity=own_identity, served_namespace=namespace),
    )

    async def run(stop: asyncio.Event) -> None:
        await run_operator(settings, stop)

    try:
        run_until_signalled(run)
    except KubeconfigError as error:
        raise typer.BadParameter(str(error), param_hint="--kubeconfig") from error
    except ApiError as error:
        # Only the start asks the API once; later everybody goes on asking. Whoever started us starts us again.
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def own_address(identity: str, controller_addresses: list[str]) -> str:
    """Which of the controller addresses leads to this very pod: by the ordinal that ends a StatefulSet pod's name.

    With one address it is that one. A pod that advertised another's address would send brokers away from itself.
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
