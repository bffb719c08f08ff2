"""How the chart's SLA report reaches its server, and which series it takes: values to arguments, Secrets and mounts.

Each rendered command line is run by the command itself, up to the moment at which Spark would start, with the files that the
rendered mounts put into the pod. Values that this command would refuse a month later are refused by `helm template`.
"""

from __future__ import annotations

import base64
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from brokergroup_operator.cli import sla_command
from brokergroup_operator.cli.main import app
from sla_reports import report
from sla_reports.connection import address_of, credentials_of
from tests.real.parts import helm
from tests.real.sla_release import DRIVERS, MODES, pod_templates, rendered, words_of
from tests.security.certificates import make_authority

if TYPE_CHECKING:
    from pathlib import Path

    from sla_reports.report import Request

pytestmark = pytest.mark.real("helm")

USER, PASSWORD = 'reader #1 "of" shop', "p: @ss #1"
BASIC = ("Authorization", "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
SECRETS: dict[str, dict[str, str]] = {
    "0123": {"token": "abc.def"},
    "server-headers": {"headers": "X-Scope-OrgID: shop\nX-Asked-By: sla\n", "unused": "x"},
    "server-user": {"username": USER, "password": PASSWORD},
}
HEADERS = (("X-Scope-OrgID", "shop"), ("X-Asked-By", "sla"))
# Characters that a YAML value may have, and a command line must keep.
REGION = 'eu: "west" #1'
LABELS = {"replicaLabels": ["receive_replica", "rack_copy"], "match": {"region": REGION, "tier": "a=b"}}
WHOLE: dict[str, Any] = {
    "enabled": True,
    "groupObjectives": False,
    "daily": {"enabled": False},
    "period": "2026-10",
    "source": {"prometheusUrl": "https://prometheus:9090/select/0"},
    "incidents": ["/inputs/incidents"],
    "volumes": [{"name": "incidents", "claimName": "incidents", "mountPath": "/inputs/incidents"}],
}
TLS = {"secretName": "server-tls", "clientCertificate": True}
BASIC_AUTH = {"user": USER, "secretName": "server-user"}


def with_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a release that makes a report, with these of `slaReport` on top."""
    source = {**WHOLE["source"], **values.get("source", {})}
    return {"slaReport": {**WHOLE, **values, "source": source}}


def mounted_keys(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Each Secret and key that the pod's container finds as a file."""
    return {(secret, key) for secret, key, _ in _secret_files(pod)}


def _secret_files(pod: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Secret, key and path in the container of each file, as the kubelet makes them of the volumes."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    found = []
    for mount in pod["containers"][0]["volumeMounts"]:
        secret = volumes[mount["name"]].get("secret")
        if secret is None:
            continue
        assert mount["readOnly"] is True
        every = [{"key": key, "path": key} for key in SECRETS[secret["secretName"]]]
        items = secret.get("items", every)
        found += [(secret["secretName"], item["key"], f"{mount['mountPath']}/{item['path']}") for item in items]
    return found


class Started:
    """The command, run with the words and the files of a rendered pod; `request` is what it would have made a report of."""

    def __init__(self, objects: list[dict[str, Any]], mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pod = pod_templates(objects)[DRIVERS[mode]]["spec"]
        for secret, key, path in _secret_files(self.pod):
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(SECRETS[secret][key], encoding="utf-8")
        self.words = words_of(objects)
        here = [re.sub(r"^(--[a-z-]+=)/", rf"\g<1>{folder}/", word) for word in self.words]
        requests: list[Request] = []

        def stop_there(_: object, request: Request) -> None:
            requests.append(request)
            raise typer.Exit(0)

        monkeypatch.setattr(report, "make_report", stop_there)
        monkeypatch.setattr(sla_command, "_spark", lambda *_, **__: nullcontext())
        told = CliRunner().invoke(app, ["sla", *here])
        assert (told.exit_code, told.stderr) == (0, "")
        [self.request] = requests

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of each request to the server. Loads the TLS files too."""
        origin = self.request.origin
        credentials = credentials_of(origin.access, address_of(origin.url))
        credentials.tls()
        return credentials.headers


@pytest.fixture(scope="module", autouse=True)
def certificates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A Secret of type kubernetes.io/tls with the authority's certificate, as cert-manager writes one."""
    authority = make_authority(tmp_path_factory.mktemp("authority"))
    authority.issue("reports")
    named = {
        "ca.crt": authority.certificate,
        "tls.crt": authority.folder / "reports.crt",
        "tls.key": authority.folder / "reports.key",
    }
    SECRETS["server-tls"] = {name: file.read_text(encoding="utf-8") for name, file in named.items()}


@pytest.mark.parametrize(
    ("values", "headers", "keys"),
    [
        ({}, (), set()),
        (
            {"source": {"bearerTokenSecretName": "0123"}},
            (("Authorization", "Bearer abc.def"),),
            {("0123", "token")},
        ),
        ({"source": {"headersSecretName": "server-headers"}}, HEADERS, {("server-headers", "headers")}),
        ({"source": {"basicAuth": BASIC_AUTH}}, (BASIC,), {("server-user", "password")}),
        ({"source": {"tls": {"secretName": "server-tls"}}}, (), {("server-tls", "ca.crt")}),
        ({"source": {"tls": TLS}}, (), {("server-tls", key) for key in ("ca.crt", "tls.crt", "tls.key")}),
    ],
    ids=["an open server", "bearer token", "headers", "basic auth", "an authority", "a client certificate"],
)
def test_what_a_server_asks_for_comes_from_its_secret_and_no_other_key_is_mounted(
    values: dict[str, Any],
    headers: tuple[tuple[str, str], ...],
    keys: set[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(rendered(values_file=with_values(values)), "cron job", tmp_path, monkeypatch)
    assert started.headers == headers
    assert mounted_keys(started.pod) == keys
    assert [word for word in started.words if any(secret in word for secret in (PASSWORD, "abc.def", "shop\n"))] == []


@pytest.mark.parametrize("mode", MODES)
def test_all_of_it_at_once_in_each_mode_and_executors_have_the_same_files(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"headersSecretName": "server-headers", "basicAuth": BASIC_AUTH, "tls": TLS}
    objects = rendered(values_file=with_values({"source": source, **LABELS}), **MODES[mode])
    started = Started(objects, mode, tmp_path, monkeypatch)
    assert started.headers == (*HEADERS, BASIC)
    assert started.request.replica_labels == LABELS["replicaLabels"]
    assert started.request.match == LABELS["match"]
    templates = pod_templates(objects)
    for name, template in templates.items():
        # Executors ask the server themselves; a pod that only submits a driver has nothing of it.
        own = [] if (mode, name) == ("cluster", "job") else _secret_files(started.pod)
        assert _secret_files(template["spec"]) == own, name
    assert len(templates) == {"cron job": 1, "client": 2, "cluster": 3, "spark operator": 2}[mode]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"replicaLabels": LABELS["replicaLabels"]}, (LABELS["replicaLabels"], {})),
        ({"match": LABELS["match"]}, ([], LABELS["match"])),
        ({"replicaLabels": [], "match": {}}, ([], {})),
    ],
    ids=["replica labels", "match", "neither"],
)
def test_which_series_are_taken(
    values: dict[str, Any], wanted: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(rendered(values_file=with_values(values)), "cron job", tmp_path, monkeypatch)
    assert (started.request.replica_labels, started.request.match) == wanted


FILES = {"form": "lake", "prometheusUrl": "", "exports": ["/inputs/incidents/lake"]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"source": {"basicAuth": {"user": "reader"}}},
            "source.basicAuth.secretName is empty: expected the Secret with the password of user reader",
        ),
        (
            {"source": {"basicAuth": {"secretName": "server-user"}}},
            "source.basicAuth.user is empty: expected the user name of the password in basicAuth.secretName",
        ),
        (
            {"source": {"basicAuth": {"user": "a:b", "secretName": "server-user"}}},
            "'/slaReport/source/basicAuth/user': 'a:b' does not match",
        ),
        (
            {"source": {"basicAuth": {"password": "hunter2"}}},
            "'/slaReport/source/basicAuth': additional properties 'password' not allowed",
        ),
        ({"source": {"basicAuth": None}}, "'/slaReport/source': missing property 'basicAuth'"),
        ({"source": {"tls": None}}, "'/slaReport/source': missing property 'tls'"),
        (
            {"source": {"bearerTokenSecretName": "server-token", "basicAuth": BASIC_AUTH}},
            "source: bearerTokenSecretName and basicAuth.secretName: expected one of them",
        ),
        (
            {"source": {"tls": {"clientCertificate": True}}},
            "source.tls.secretName is empty: expected the Secret with tls.crt and tls.key, for clientCertificate is true",
        ),
        (
            {"source": {"prometheusUrl": "http://prometheus:9090", "tls": {"secretName": "server-tls"}}},
            "source.tls.secretName server-tls: expected an https:// address, not http://prometheus:9090",
        ),
        (
            {"source": {"headersSecretName": "Server_Headers"}},
            "'/slaReport/source/headersSecretName': 'Server_Headers' does not match",
        ),
        (
            {"source": {"prometheusUrl": "prometheus:9090"}},
            "source.prometheusUrl prometheus:9090: expected http://host:port or https://host:port",
        ),
        (
            {"source": {"prometheusUrl": "reader:hunter2@prometheus:9090"}},
            "source.prometheusUrl holds a user or a password: expected them in source.basicAuth",
        ),
        (
            {"source": {"prometheusUrl": "http://prometheus:9090/?tenant=a"}},
            "source.prometheusUrl http://prometheus:9090/?tenant=a: expected no ? and no #",
        ),
        (
            {"source": {"prometheusUrl": "http://reader:hunter2@prometheus:9090"}},
            "source.prometheusUrl holds a user or a password: expected them in source.basicAuth",
        ),
        ({"source": {**FILES, "prometheusUrl": "http://a:1"}}, "source.prometheusUrl: expected none with form lake"),
        ({"source": {**FILES, "bearerTokenSecretName": "a"}}, "source.bearerTokenSecretName: expected none with form lake"),
        ({"source": {**FILES, "headersSecretName": "a"}}, "source.headersSecretName: expected none with form lake"),
        ({"source": {**FILES, "basicAuth": BASIC_AUTH}}, "source.basicAuth.secretName: expected none with form lake"),
        ({"source": {**FILES, "tls": TLS}}, "source.tls.secretName: expected none with form lake"),
        ({"replicaLabels": ["receive-replica"]}, "'/slaReport/replicaLabels/0': 'receive-replica' does not match"),
        ({"replicaLabels": ["namespace"]}, "replicaLabels: namespace: expected a label that does not name the group"),
        ({"replicaLabels": ["exported_cluster"]}, "replicaLabels: exported_cluster: expected a label that does not"),
        ({"match": {"a-b": "c"}}, "match: a-b: expected the name of a label, as region"),
        ({"match": {"region": ""}}, "match: region is empty: expected the value of the label, as eu"),
        ({"match": {"region": 1}}, "'/slaReport/match/region': got number, want string"),
        ({"objective": 0.9995}, "'/slaReport/objective'"),
        ({"objective": "0.9995"}, "'/slaReport/objective'"),
        ({"period": "2026-13"}, "'/slaReport/period': '2026-13' does not match"),
        ({"period": "2026-W54"}, "'/slaReport/period': '2026-W54' does not match"),
    ],
)  # fmt: skip
def test_what_the_command_would_refuse_is_refused_before_and_no_password_is_shown(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        helm.template("system", values_file=with_values(values))
    assert "hunter2" not in str(refused.value)
