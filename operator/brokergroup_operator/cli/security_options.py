"""The options about TLS, signatures and administrators that `brokergroup operator` and `brokergroup controller` share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from brokergroup_operator.controller.settings import (
    AdminCredentials,
    AdminCredentialsError,
    SecuritySettings,
    read_credentials,
)
from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import (
    ClientCertificates,
    ClientTls,
    ServerTls,
    TlsConfigurationError,
    TlsFiles,
    TlsMode,
    TlsServerSettings,
)


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """The options of both."""

    tls_mode: Annotated[
        TlsMode | None,
        typer.Option(
            "--tls-mode", help="On the controller's port; default: enforcing with --tls-certificate, else disabled"
        ),
    ] = None
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM, with its chain")] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM, without a password")] = None
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", help="PEM: the authorities whose certificates are accepted")
    ] = None
    tls_client_certificates: Annotated[
        ClientCertificates, typer.Option("--tls-client-certificates", help="Asked of brokers and mqadmin")
    ] = ClientCertificates.NONE
    broker_tls: Annotated[
        bool, typer.Option("--broker-tls", help="Dial brokers over TLS, with the same certificate and CA")
    ] = False
    name_server_tls: Annotated[bool, typer.Option("--name-server-tls", help="The same for NameServers")] = False
    admin_credentials: Annotated[
        Path | None,
        typer.Option(
            "--admin-credentials",
            help="Credentials that may designate and clean: a folder with accessKey and secretKey, or JSON; read anew on change",
        ),
    ] = None
    admin_certificate_names: Annotated[
        list[str] | None, typer.Option("--admin-certificate-name", help="The same, by certificate; repeatable")
    ] = None
    configuration_readable: Annotated[
        bool, typer.Option("--configuration-readable", help="Answer mqadmin getControllerConfig (1010)")
    ] = False

    def settings(self, *, open_admin: bool = False, brokers_without_pods: bool = False) -> SecuritySettings:
        """Return what the options mean together. Raise typer.BadParameter if they do not fit, or a file cannot be used."""
        try:
            files = TlsFiles(certificate=self.tls_certificate, key=self.tls_key, ca=self.tls_ca)
            tls = self._tls(files)
            # Files that cannot be used are found now, not at the first connection.
            ClientTls(files)
            if tls is not None:
                ServerTls(tls)
        except TlsConfigurationError as error:
            raise typer.BadParameter(str(error), param_hint="--tls-*") from error
        return SecuritySettings(
            tls=tls,
            broker_tls=files if self.broker_tls else None,
            name_server_tls=files if self.name_server_tls else None,
            admin_credentials=self._admins(),
            admin_certificate_names=frozenset(self.admin_certificate_names or ()),
            open_admin=open_admin,
            configuration_readable=self.configuration_readable,
            brokers_without_pods=brokers_without_pods,
        )

    def _tls(self, files: TlsFiles) -> TlsServerSettings | None:
        mode = self.tls_mode or (TlsMode.DISABLED if files.certificate is None else TlsMode.ENFORCING)
        if mode is TlsMode.DISABLED:
            if self.tls_client_certificates is not ClientCertificates.NONE:
                raise TlsConfigurationError(
                    "client certificates are asked for and TLS is disabled: expected --tls-certificate"
                )
            return None
        if self.admin_certificate_names and self.tls_client_certificates is ClientCertificates.NONE:
            raise TlsConfigurationError(
                "--admin-certificate-name: expected --tls-client-certificates optional or required"
            )
        return TlsServerSettings(mode=mode, files=files, client_certificates=self.tls_client_certificates)

    def _admins(self) -> AdminCredentials | None:
        if self.admin_credentials is None:
            return None
        try:
            return AdminCredentials(path=self.admin_credentials)
        except AdminCredentialsError as error:
            raise typer.BadParameter(str(error), param_hint="--admin-credentials") from error


def read_one(path: Path, option: str) -> Credentials:
    """Return the one access key in this file. Raise typer.BadParameter if there is not exactly one."""
    try:
        found = read_credentials(path)
    except AdminCredentialsError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if len(found) != 1:
        raise typer.BadParameter(f"{path} has {len(found)} access keys: expected one", param_hint=option)
    return found[0]
