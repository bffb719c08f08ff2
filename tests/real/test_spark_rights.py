"""The rights of the chart's Spark: a real spark-submit asks a real API server, with the Roles and nothing more.

In cluster mode both Roles are used: the job's pod submits, the driver's pod makes executors, loses one, and cleans up. The audit
log has the requests of each: none is refused, and every right of a Role is used. The namespace accepts no pod
that is not restricted.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import helm
from tests.real.spark_pods import SparkPods, entry_point, process_environment
from tests.support.kube_apiserver import KubeApiserver, running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real("kube-apiserver", "helm", "java"), pytest.mark.timeout(600)]

NAMESPACE = "reports"
DEADLINE_SECONDS = 300.0
JOB = Path(__file__).with_name("spark_job.py")
VALUES: dict[str, Any] = {
    "slaReport__enabled": "true",
    "slaReport__mode": "SparkSubmit",
    "slaReport__namespace": NAMESPACE,
    "slaReport__sparkSubmit__deployMode": "cluster",
    "slaReport__source__prometheusUrl": "http://prometheus:9090",
    "slaReport__incidents[0]": "/inputs/incidents",
    "slaReport__volumes[0].name": "incidents",
    "slaReport__volumes[0].claimName": "incidents",
    "slaReport__volumes[0].mountPath": "/inputs/incidents",
    "slaReport__executors__instances": "1",
    "slaReport__executors__memory": "512m",
    # A driver lists its executors every 30 s: this one would be done by then.
    r"slaReport__sparkConf__spark\.kubernetes\.executor\.apiPollingInterval": "1s",
}
# A server-side apply of what is not there is a `patch` in the audit log; the server asks for `create` too.
CREATED_BY_APPLY = {("create", "", "services"), ("create", "", "configmaps")} | {
    ("create", "networking.k8s.io", "networkpolicies")
}
Right = tuple[str, str, str]


@dataclass
class Run:
    """A submission, and the requests of its two accounts."""

    server: KubeApiserver
    objects: list[dict[str, Any]]
    submitted: subprocess.CompletedProcess[str]
    driver_log: str
    executor_log: str
    lost: list[str]

    def one(self, kind: str, suffix: str) -> dict[str, Any]:
        [found] = [one for one in self.objects if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)]
        return found

    def asked(self, account: str) -> list[dict[str, Any]]:
        return self.server.audited(f"system:serviceaccount:{NAMESPACE}:{account}")

    def rights_asked_for(self, account: str) -> set[Right]:
        found = set()
        for entry in self.asked(account):
            told = entry["objectRef"]
            assert told["namespace"] == NAMESPACE
            found.add((entry["verb"], told.get("apiGroup", ""), told["resource"]))
        return found

    def rights_given(self, suffix: str) -> set[Right]:
        return {
            (verb, group, resource)
            for rule in self.one("Role", suffix)["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("spark")
    with running_kube_apiserver(folder / "api", audit=True) as server:
        yield _submitted(server, folder)


def _submitted(server: KubeApiserver, folder: Path) -> Run:
    objects = [one for one in helm.rendered("system", **VALUES) if _is_of_the_report(one)]
    server.must("create", "namespace", NAMESPACE)
    server.must("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    server.must("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))
    job = helm.one(objects, "CronJob")
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    settings = helm.one(objects, "ConfigMap")
    spark = folder / "spark"
    spark.mkdir()
    for name, text in settings["data"].items():
        (spark / name).write_text(text.replace("/etc/brokergroup/spark", str(spark)))
    words = [word.replace("/etc/brokergroup/spark", str(spark)) for word in container["args"]]
    words[1:2] = [f"--master=k8s://{server.url}", *_how_to_reach(server, folder)]
    words[words.index("{application}")] = f"local://{JOB}"
    with SparkPods(server.client, NAMESPACE, folder) as pods:
        submitting = subprocess.Popen(
            entry_point(*words), env=process_environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )  # fmt: skip
        try:
            told = _until_over(submitting, pods)
        finally:
            # Not killed: it passes this on to the spark-submit that it waits for.
            submitting.terminate()
            submitting.communicate()
    done = subprocess.CompletedProcess(words, submitting.returncode, told)
    return Run(server, objects, done, pods.log("driver"), pods.log("executor"), pods.lost)


def _is_of_the_report(one: dict[str, Any]) -> bool:
    return bool(one["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sla-report")


def _how_to_reach(server: KubeApiserver, folder: Path) -> list[str]:
    """Tokens are files of the pods elsewhere; here they are files of the test."""
    for account in ("sla", "sla-submit"):
        token = server.must("create", "token", f"bg-brokergroup-operator-{account}", "--namespace", NAMESPACE)
        (folder / account).write_text(token)
    settings = {
        "authenticate.submission.oauthTokenFile": folder / "sla-submit",
        "authenticate.submission.caCertFile": server.ca_file,
        "authenticate.driver.mounted.oauthTokenFile": folder / "sla",
        "authenticate.driver.mounted.caCertFile": server.ca_file,
        "driver.master": server.url,
    }
    return [f"--conf=spark.kubernetes.{name}={value}" for name, value in settings.items()]


def _until_over(submitting: subprocess.Popen[str], pods: SparkPods) -> str:
    """Return the output of spark-submit, which waits for the driver's pod."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return submitting.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            assert pods.failure is None, pods.failure
            assert time.monotonic() < deadline, (
                f"{pods.log('driver')[-4000:]}\n--- executors\n{pods.log('executor')[-4000:]}"
            )


def test_the_job_is_done_by_an_executor_in_a_pod(run: Run) -> None:
    # The driver's verdict is the job's: spark-submit itself ends with 0 however the driver ended.
    assert run.submitted.returncode == 3, f"{run.submitted.stdout[-3000:]}\n--- driver\n{run.driver_log[-3000:]}"
    # The report's own words arrive at the application as they are.
    assert "counted 1000 report --from=http --url=http://prometheus:9090" in run.driver_log
    assert "--out=/reports/{period}" in run.driver_log
    assert "Successfully registered with driver" in run.executor_log
    assert len(run.lost) == 1


def test_the_namespace_would_refuse_a_pod_that_is_not_restricted(run: Run) -> None:
    container = {"name": "any", "image": "any"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": {"containers": [container]}}
    done = run.server.kubectl("create", "--namespace", NAMESPACE, "-f", "-", stdin=yaml.safe_dump(pod))
    assert "violates PodSecurity" in done.stderr


@pytest.mark.parametrize("account", ["sla", "sla-submit"])
def test_nothing_that_spark_asks_for_is_refused(run: Run, account: str) -> None:
    asked = run.asked(f"bg-brokergroup-operator-{account}")
    refused = [entry["requestURI"] for entry in asked if entry["responseStatus"]["code"] in {401, 403}]
    assert asked
    assert refused == []


def test_the_driver_may_do_what_it_asks_for_and_nothing_else(run: Run) -> None:
    asked = run.rights_asked_for("bg-brokergroup-operator-sla")
    assert run.rights_given("-sla") == asked


def test_who_submits_may_do_what_it_asks_for_and_nothing_else(run: Run) -> None:
    asked = run.rights_asked_for("bg-brokergroup-operator-sla-submit")
    assert ("patch", "networking.k8s.io", "networkpolicies") in asked
    assert run.rights_given("-sla-submit") == asked | CREATED_BY_APPLY
