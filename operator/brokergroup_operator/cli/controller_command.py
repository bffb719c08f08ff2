"""`brokergroup controller`: the controller plane alone, in place of RocketMQ's own controller; no Kubernetes."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from brokergroup_operator.cli.endpoints import check_store, parse_address, parse_endpoint
from brokergroup_operator.cli.logging_options import LogFormatOption, LogLevelOption, configure_logging
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
    read_one,
)
from brokergroup_operator.controller.directory.group_directory import SignaturePolicy
from rocketmq_remoting.tls import ClientCertificates


def controller(  # noqa: PLR0913 - one argument a flag
    *,
    store: Annotated[str, typer.Option("--store", help="memory, file:<folder>, or kubernetes:<namespace>")] = "memory",
    listen: Annotated[str, typer.Option("--listen", help="host:port of the controller")] = "127.0.0.1:9878",
    advertise: Annotated[str, typer.Option("--advertise", help="host:port as brokers dial it; default: --listen")] = "",
    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None,
    metrics_listen: Annotated[str | None, typer.Option("--metrics-listen", help="host:port of /metrics")] = None,
    incident_log: Annotated[Path | None, typer.Option("--incident-log", help="JSON lines, one a failover")] = None,
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
    open_admin: Annotated[
        bool,
        typer.Option("--open-admin", help="Whoever reaches the port may designate and clean, as at Java's controller"),
    ] = False,
    signature: Annotated[
        SignaturePolicy, typer.Option("--signature", help="Of brokers' requests; Required needs --broker-credentials")
    ] = SignaturePolicy.ACCEPTED,
    broker_credentials: Annotated[
        Path | None,
        typer.Option(
            "--broker-credentials", help="Whom the brokers sign as, and how they are spoken to; as --admin-credentials"
        ),
    ] = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Serve brokers until SIGTERM, with records in a folder or in memory. There is nothing to fence a silent master with."""
    from brokergroup_operator.cli.signals import run_until_signalled
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
    from brokergroup_operator.records.store import RecordStoreError

    configure_logging(log_level, log_format)
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
        open_admin=open_admin,
    ).settings()
    if signature is SignaturePolicy.REQUIRED and broker_credentials is None:
        raise typer.BadParameter(
            "Required: expected --broker-credentials to check signatures with", param_hint="--signature"
        )
    check_store(store)
    host, port = parse_endpoint(listen, "--listen")
    settings = StandaloneSettings(
        plane=PlaneSettings(
            listen_host=host,
            listen_port=port,
            advertise_address=advertise and parse_address(advertise, "--advertise"),
            security=security,
            drain_seconds=drain_seconds,
        ),
        signature=signature,
        broker_credentials=read_one(broker_credentials, "--broker-credentials") if broker_credentials else None,
        store=store,
        name_servers=tuple(parse_address(one, "--name-server") for one in name_servers or ()),
        metrics_listen=parse_endpoint(metrics_listen, "--metrics-listen") if metrics_listen else None,
        incident_log=incident_log,
    )

    async def run(stop: asyncio.Event) -> None:
        try:
            await run_standalone(settings, stop)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    try:
        run_until_signalled(run)
    except RecordStoreError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
