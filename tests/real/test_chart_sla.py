"""The chart's SLA report: in each mode what the API server accepts, what the command line understands, and restricted pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.cli.group_objectives import objectives_of_cluster
from sla_reports.class_archive import jvm_options
from tests.real.parts import helm
from tests.real.parts.helm import of_kind, one
from tests.real.sla_release import (
    DAILY,
    DRIVERS,
    HTTP,
    MODES,
    SPARK_OPERATOR,
    job_pod,
    parsed,
    pod_templates,
    rendered,
    words_of,
)

if TYPE_CHECKING:
    from tests.support.kube_apiserver import KubeApiserver

pytestmark = pytest.mark.real("helm")

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = {
    **HTTP,
    "slaReport__objective": "99.95",
    "slaReport__timeZone": "Asia/Shanghai",
    "slaReport__source__bearerTokenSecretName": "prometheus-token",
    "slaReport__source__prometheusUrl": "https://prometheus:9090",
    "slaReport__source__headersSecretName": "prometheus-headers",
    "slaReport__source__tls__secretName": "prometheus-tls",
    "slaReport__source__tls__clientCertificate": "true",
    "slaReport__amendmentsConfigMapName": "amendments",
    "slaReport__objectivesConfigMapName": "objectives",
    "slaReport__output__storage": "1Gi",
    "slaReport__tolerations[0].operator": "Exists",
    "slaReport__nodeSelector__pool": "batch",
    "imagePullSecrets[0]": "registry",
    "networkPolicy__create": "true",
}

HTTPS = {"slaReport__source__prometheusUrl": "https://prometheus:9090"}


def test_without_a_word_there_is_nothing_of_it() -> None:
    assert rendered() == []


@pytest.mark.real("kube-apiserver")
@pytest.mark.parametrize(
    "values", [EVERYTHING | MODES["client"], EVERYTHING | MODES["cluster"], EVERYTHING, EVERYTHING | DAILY | HTTPS]
)
def test_the_real_apiserver_accepts_it_and_its_pods_are_restricted(
    with_kinds: KubeApiserver, namespace: str, values: dict[str, Any]
) -> None:
    """The namespace enforces Pod Security `restricted`: a pod of each template is made, not only a CronJob."""
    with_kinds.must("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    objects = rendered(namespace, **values)
    pods = []
    for name, template in pod_templates(objects).items():
        container = template["spec"]["containers"][0]
        containers = [{"image": "sla", **container}]
        pods.append({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {**template["metadata"], "name": name.partition(".")[0], "namespace": namespace},
            "spec": {"restartPolicy": "Never", **template["spec"], "containers": containers},
        })  # fmt: skip
    options = ["--server-side", "--dry-run=server", "--validate=strict"]
    done = with_kinds.kubectl("apply", *options, "-f", "-", stdin=yaml.safe_dump_all([*objects, *pods]))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout.count("serverside-applied (server dry run)") == len(objects) + len(pods)


@pytest.mark.parametrize("mode", MODES)
def test_no_pod_may_more_than_it_must(mode: str) -> None:
    """Root file systems are read-only except /tmp; a pod without requests to the API server has no token."""
    own: dict[str, Any] = {"slaReport__groupObjectives": "false"}
    for name, template in pod_templates(rendered(**EVERYTHING, **own, **MODES[mode])).items():
        [container] = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert {"/tmp"} <= writable <= {"/tmp", "/reports"}
        speaks = mode != "cron job" and not name.startswith("executor")
        assert template["spec"].get("automountServiceAccountToken", True) is speaks


@pytest.mark.parametrize("mode", MODES)
def test_the_operators_services_and_budgets_select_no_pod_of_it(mode: str) -> None:
    everything = helm.rendered("system", capabilities=(SPARK_OPERATOR,), **EVERYTHING, **MODES[mode])
    theirs = one(everything, "StatefulSet")["spec"]["selector"]["matchLabels"].items()
    policy = one(rendered(**EVERYTHING, **MODES[mode]), "NetworkPolicy")["spec"]
    for template in pod_templates(everything).values():
        labels = template["metadata"]["labels"].items()
        assert not theirs <= labels
        assert policy["podSelector"]["matchLabels"].items() <= labels
    # No client can reach them; driver and executors reach each other.
    assert policy["policyTypes"] == ["Ingress"]
    assert policy.get("ingress") == (
        None if mode == "cron job" else [{"from": [{"podSelector": policy["podSelector"]}]}]
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_command_line_understands_it_and_finds_its_files(mode: str) -> None:
    objects = rendered(**EVERYTHING, **MODES[mode])
    told = parsed(words_of(objects))
    spec = pod_templates(objects)[DRIVERS[mode]]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (told["form"], told["url"], told["period"]) == ("http", "https://prometheus:9090", "previous-month")
    assert (told["time_zone"], told["objective_percent"]) == ("Asia/Shanghai", 99.95)
    served = (told[name] for name in ("bearer_token_file", "header_file", "ca_file", "cert_file", "key_file"))
    for file in (*served, told["amendments"], *told["objectives"], *told["incidents"], told["out"]):
        assert any(Path(file).is_relative_to(path) for path in mounts), file
    assert [str(one) for one in told["objectives"]] == ["/etc/brokergroup/objectives"]
    assert str(told["out"]) == "/reports/{period}"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    claim = one(objects, "PersistentVolumeClaim")
    assert volumes["reports"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_each_day_is_reduced_once_and_reports_read_the_table_of_days() -> None:
    """The default. The report's pod first makes up for days that the daily job missed, and for today's beginning."""
    values = EVERYTHING | DAILY | HTTPS
    objects = rendered(**values)
    pods = pod_templates(objects)
    assert set(pods) == {"job", "daily"}
    [table] = pods["daily"]["spec"]["containers"]
    assert pods["job"]["spec"]["initContainers"] == [table]
    wanted = parsed(table["args"][1:])
    assert (table["args"][0], wanted["form"], wanted["catch_up_days"]) == ("sla", "http", 13)
    assert [str(one) for one in wanted["incidents"]] == ["/inputs/incidents"]
    report = parsed(pods["job"]["spec"]["containers"][0]["args"][1:])
    assert (report["form"], report["exports"], report["url"]) == ("runs", [wanted["store"]], None)
    claim = one(objects, "PersistentVolumeClaim")["metadata"]["name"]
    for pod in pods.values():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["reports"]["persistentVolumeClaim"]["claimName"] == claim
    mounts = {mount["mountPath"]: mount["name"] for mount in table["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in pods["daily"]["spec"]["volumes"]}
    secrets = (wanted[name] for name in ("bearer_token_file", "header_file", "ca_file", "cert_file", "key_file"))
    for file in (*secrets, wanted["store"]):
        assert any(Path(file).is_relative_to(path) for path in mounts), file
    # It speaks to no API server.
    assert pods["daily"]["spec"]["automountServiceAccountToken"] is False
    long_name = rendered(**DAILY, fullnameOverride="n" * 52)
    assert {len(item["metadata"]["name"]) for item in of_kind(long_name, "CronJob")} == {52}


def test_the_table_of_days_may_lie_in_s3() -> None:
    place = {"slaReport__daily__store": "s3a://reports/runs", "slaReport__daily__storeSecretName": "reports-s3"}
    pods = pod_templates(rendered(**EVERYTHING | DAILY | HTTPS | place))
    spec = pods["job"]["spec"]
    for container in (*pods["daily"]["spec"]["containers"], *spec["initContainers"], *spec["containers"]):
        assert container["envFrom"] == [{"secretRef": {"name": "reports-s3"}}]
        words = parsed(container["args"][1:])
        assert [words.get("store") or words["exports"][0]] == ["s3a://reports/runs"]
    # Without a claim the reports are in the jobs' logs only; the days are kept.
    assert pod_templates(rendered(**DAILY | place | {"slaReport__output__storage": ""}))
    assert "envFrom" not in pod_templates(rendered(**DAILY))["job"]["spec"]["containers"][0]


@pytest.mark.parametrize("mode", ["client", "cluster", "spark operator"])
def test_executors_and_files_read_the_whole_period(mode: str) -> None:
    assert set(pod_templates(rendered(**{**DAILY, **MODES[mode]}))) == set(
        pod_templates(rendered(**HTTP, **MODES[mode]))
    )


def test_files_instead_of_a_server() -> None:
    values = {
        **HTTP,
        "slaReport__source__prometheusUrl": "",
        "slaReport__source__form": "runs",
        "slaReport__source__exports[0]": "/inputs/incidents/runs",
        "slaReport__output__claimName": "reports",
    }
    objects = rendered(**values)
    told = parsed(words_of(objects))
    assert (told["form"], [str(path) for path in told["exports"]]) == ("runs", ["/inputs/incidents/runs"])
    assert (told["url"], told["objective_percent"]) == (None, None)
    volumes = {volume["name"]: volume for volume in job_pod(objects)["spec"]["volumes"]}
    assert volumes["reports"] == {"name": "reports", "persistentVolumeClaim": {"claimName": "reports"}}
    assert not of_kind(objects, "PersistentVolumeClaim")


def test_two_runs_never_overlap_and_a_verdict_is_not_tried_again() -> None:
    for mode in ("cron job", "client", "cluster"):
        cron_job = one(rendered(**HTTP, **MODES[mode]), "CronJob")["spec"]
        assert (cron_job["concurrencyPolicy"], cron_job["timeZone"]) == ("Forbid", "Etc/UTC")
        [rule] = cron_job["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        [container] = cron_job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert rule == {
            "action": "FailJob",
            "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [2, 3, 4]},
        }
        assert cron_job["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    scheduled = one(rendered(**HTTP, **MODES["spark operator"]), "ScheduledSparkApplication")["spec"]
    assert (scheduled["concurrencyPolicy"], scheduled["template"]["restartPolicy"]) == ("Forbid", {"type": "Never"})


def test_the_laptops_way_has_the_heap_it_is_given() -> None:
    [container] = job_pod(rendered(**HTTP, slaReport__driverMemory="3g"))["spec"]["containers"]
    assert container["env"] == [{"name": "PYSPARK_SUBMIT_ARGS", "value": "--driver-memory 3g pyspark-shell"}]
    assert container["args"][:2] == ["sla", "report"]


def test_spark_is_told_of_the_pods_it_makes() -> None:
    objects = rendered(**HTTP, **MODES["cluster"], slaReport__namespace="reports", slaReport__executors__instances="3")
    settings = dict(line.split("=", 1) for line in one(objects, "ConfigMap")["data"]["spark.properties"].splitlines())
    assert settings["spark.kubernetes.namespace"] == "reports"
    assert settings["spark.executor.instances"] == "3"
    accounts = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount")}
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] in accounts
    mounted = {mount["name"]: mount["mountPath"] for mount in job_pod(objects)["spec"]["containers"][0]["volumeMounts"]}
    for part, container in (("driver", "report"), ("executor", "executor")):
        path = Path(settings[f"spark.kubernetes.{part}.podTemplateFile"])
        assert str(path.parent) == mounted["spark"]
        template = yaml.safe_load(one(objects, "ConfigMap")["data"][path.name])
        assert settings[f"spark.kubernetes.{part}.podTemplateContainerName"] == container
        assert [item["name"] for item in template["spec"]["containers"]] == [container]
    namespaced = [item for item in objects if not item["kind"].startswith("ClusterRole")]
    assert {item["metadata"]["namespace"] for item in namespaced} == {"reports"}


def test_a_setting_of_yours_wins() -> None:
    mine: dict[str, Any] = {r"slaReport__sparkConf__spark\.executor\.memoryOverheadFactor": "0.7"}
    objects = rendered(**HTTP, **MODES["spark operator"], **mine)
    assert (
        one(objects, "ScheduledSparkApplication")["spec"]["template"]["sparkConf"][
            "spark.executor.memoryOverheadFactor"
        ]
        == "0.7"
    )


def test_paths_in_the_image_are_those_of_the_dockerfile(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    template = one(rendered(**HTTP, **MODES["spark operator"]), "ScheduledSparkApplication")["spec"]["template"]
    assert f" {template['mainApplicationFile'].removeprefix('local://')}\n" in text
    options = template["sparkConf"]["spark.driver.extraJavaOptions"]
    assert template["sparkConf"]["spark.executor.extraJavaOptions"] == options
    archive = re.search(r"SharedArchiveFile=(\S+)", options)
    assert archive
    assert f"BROKERGROUP_SPARK_ARCHIVE={archive[1]}" in text
    # As a session of its own would use it.
    here = tmp_path / "spark.jsa"
    here.write_text("")
    here.with_name("spark.jsa.size").write_text("0")
    assert options == jvm_options(here).replace(str(here), archive[1])
    [version] = re.findall(r'name = "pyspark"\nversion = "(.+)"', (ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert template["sparkVersion"] == version


@pytest.mark.parametrize("mode", MODES)
def test_the_job_reads_the_groups_own_objectives_and_has_the_right_to(mode: str) -> None:
    """The account of the report's pod, its token, its option; in one namespace if the operator serves one."""
    for watched, kind in (("", "ClusterRole"), ("shop", "Role")):
        objects = rendered(**HTTP, **MODES[mode], watch__namespace=watched)
        told = parsed(words_of(objects))
        assert (told["objectives_from_cluster"], told["objectives_namespace"]) == (True, watched or None)
        [role] = [item for item in objects if item["metadata"]["name"].endswith("-objectives") and "rules" in item]
        assert role["kind"] == kind
        assert role["metadata"].get("namespace") == (watched or None)
        assert role["rules"] == [
            {"apiGroups": ["brokergroup.dev"], "resources": ["brokergroups"], "verbs": ["get", "list"]}
        ]
        [binding] = [item for item in objects if item.get("roleRef", {}).get("name") == role["metadata"]["name"]]
        assert binding["roleRef"]["kind"] == kind
        [subject] = binding["subjects"]
        assert subject["name"] == account_of_report(objects, mode)
        assert pod_templates(objects)[DRIVERS[mode]]["spec"].get("automountServiceAccountToken", True) is True
    assert "objectives-from-cluster" not in str(rendered(**HTTP, **MODES[mode], slaReport__groupObjectives="false"))


def account_of_report(objects: list[dict[str, Any]], mode: str) -> str:
    """Return the account of the pod that makes the report, not of the one that submits it."""
    if mode == "spark operator":
        account: str = one(objects, "ScheduledSparkApplication")["spec"]["template"]["driver"]["serviceAccount"]
    elif mode == "cluster":
        settings = one(objects, "ConfigMap")["data"]["spark.properties"].splitlines()
        [account] = [line.split("=")[1] for line in settings if "driver.serviceAccountName" in line]
    else:
        account = job_pod(objects)["spec"]["serviceAccountName"]
    return account


@pytest.mark.real("kube-apiserver")
@pytest.mark.parametrize("watched", ["", "here"])
def test_a_real_apiserver_lets_the_jobs_account_list_groups_and_do_nothing_else(
    with_kinds: KubeApiserver, namespace: str, tmp_path: Path, watched: str
) -> None:
    """With the chart's Role the objectives come; with the binding taken away the right that is missing is named."""
    place = namespace if watched else None
    objects = [
        item for item in rendered(namespace, **HTTP, watch__namespace=place or "")
        if "Role" in item["kind"] or item["kind"] == "ServiceAccount"
    ]  # fmt: skip
    [group] = [
        item for item in yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8"))
        if item["kind"] == "BrokerGroup"
    ]  # fmt: skip
    group["spec"]["slo"] = {"availabilityPercent": "99.5", "window": "1M", "timeZone": "Asia/Shanghai"}
    group["metadata"]["namespace"] = namespace
    with_kinds.must("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([*objects, group]))
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    kubeconfig = as_account(with_kinds, namespace, account, tmp_path)
    try:
        told = objectives_of_cluster(place, kubeconfig)
        assert told.notes == ()
        [own] = [item for item in told.objectives if item.groups.startswith(f"{namespace}/")]
        assert (own.share, str(own.window)) == (0.995, "calendar month (Asia/Shanghai)")
        as_subject = f"--as=system:serviceaccount:{namespace}:{account}"
        rights = with_kinds.must("auth", "can-i", "--list", as_subject, "--namespace", namespace, "--no-headers")
        ours = [
            line.split()
            for line in rights.splitlines()
            if "brokergroup" in line or "[list" in line or "secrets" in line
        ]
        assert [line[0] for line in ours] == ["brokergroups.brokergroup.dev"]
        for verb, what in (("watch", "brokergroups"), ("patch", "brokergroups"), ("list", "secrets"), ("list", "pods")):
            assert may(with_kinds, verb, what, as_subject, namespace) == "no\n"
        elsewhere = may(with_kinds, "list", "brokergroups", as_subject, "default")
        assert elsewhere == ("no\n" if watched else "yes\n")
    finally:
        # A ClusterRoleBinding outlives the namespace of the test.
        bindings = [item for item in objects if item["kind"].endswith("Binding")]
        with_kinds.must("delete", "-f", "-", stdin=yaml.safe_dump_all(bindings))
    refused = objectives_of_cluster(place, kubeconfig)
    assert refused.objectives == ()
    assert "the right to list brokergroups.brokergroup.dev" in refused.notes[0]
    assert f'User "system:serviceaccount:{namespace}:{account}" cannot list resource "brokergroups"' in refused.notes[0]


def may(server: KubeApiserver, verb: str, what: str, subject: str, namespace: str) -> str:
    return server.kubectl("auth", "can-i", verb, what, subject, "--namespace", namespace).stdout


def as_account(server: KubeApiserver, namespace: str, account: str, folder: Path) -> Path:
    """A kubeconfig with a token of the account, as its pods have one."""
    document = yaml.safe_load(server.kubeconfig.read_text(encoding="utf-8"))
    token = server.must("create", "token", account, "--namespace", namespace).strip()
    for user in document["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_only_who_makes_pods_has_a_right_beside_the_one_to_list_groups() -> None:
    """test_spark_rights.py proves the set of rights: with exactly these a report is made."""
    own: dict[str, Any] = {"slaReport__groupObjectives": "false"}
    roles = {
        mode: [item for item in rendered(**HTTP, **own, **values) if "Role" in item["kind"]]
        for mode, values in MODES.items()
    }
    assert {mode: len(found) for mode, found in roles.items()} == {
        "cron job": 0,
        "client": 2,
        "cluster": 4,
        "spark operator": 2,
    }
    driver = one(roles["client"], "Role")["rules"]
    assert driver in [item["rules"] for item in of_kind(roles["cluster"], "Role")]
    assert driver == one(roles["spark operator"], "Role")["rules"]
    assert not [item for item in rendered(**HTTP, **MODES["cluster"], rbac__create="false") if "Role" in item["kind"]]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"slaReport__enable": "true"}, "enable"),
        ({"slaReport__mode": "Job"}, "mode"),
        ({"slaReport__schedule": "0 1 * *"}, "schedule"),
        ({"slaReport__daily__schedule": "daily"}, "schedule"),
        ({"slaReport__daily__catchUpDays": "0"}, "catchUpDays"),
        ({"slaReport__daily__store": "/reports/runs"}, "store"),
        ({"slaReport__daily__storeSecretName": "reports-s3"}, "expected daily.store as well"),
        (
            {"slaReport__daily__enabled": "true"},
            r"slaReport.output: expected claimName or storage, for the table of days \(slaReport.daily.enabled\)",
        ),
        ({"slaReport__period": "2026-10, 2026-11"}, "period"),
        ({"slaReport__objective": "100"}, "objective"),
        ({"slaReport__objective": "three nines"}, "objective"),
        ({"slaReport__driverMemory": "1Gi"}, "driverMemory"),
        ({"slaReport__source__form": "csv"}, "form"),
        ({"slaReport__sparkConf__executors": "1"}, "sparkConf"),
        ({"slaReport__sparkSubmit__master": "https://kubernetes"}, "master"),
        ({"slaReport__volumes[0].mountPath": "/etc/passwd"}, "mountPath"),
        ({"slaReport__source__prometheusUrl": "http://me:secret@prometheus"}, "prometheusUrl"),
        ({"slaReport__source__prometheusUrl": ""}, "slaReport.source.prometheusUrl is empty"),
        (
            {"slaReport__source__form": "lake", "slaReport__source__prometheusUrl": ""},
            "slaReport.source.exports is empty: expected files .* in the form lake",
        ),
        ({"slaReport__source__exports[0]": "/inputs/incidents/a"}, "expected none with form http"),
        ({"slaReport__incidents": "null"}, "slaReport.incidents is empty"),
        ({"slaReport__incidents[1]": "/inputs/incidents-of-others"}, "incidents-of-others lies below no mountPath"),
        ({"slaReport__output__storage": "1Gi", "slaReport__output__claimName": "a"}, "not both"),
    ],
)
def test_bad_values_are_refused_and_named(values: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        helm.template("system", **{**HTTP, **values})


def test_a_cluster_without_the_spark_operator_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"does not know sparkoperator\.k8s\.io/v1beta2; install"):
        helm.template("system", **HTTP, **MODES["spark operator"])
