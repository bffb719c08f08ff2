"""The chart's rendering for the SLA report: the objects, their pods, and the command's arguments."""

from __future__ import annotations

from typing import Any

import typer
import yaml

from brokergroup_operator.cli.main import app
from tests.real.parts import helm
from tests.real.parts.helm import one

SPARK_OPERATOR = "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication"
HTTP: dict[str, Any] = {
    "slaReport__enabled": "true",
    "slaReport__source__prometheusUrl": "http://prometheus:9090",
    "slaReport__incidents[0]": "/inputs/incidents",
    "slaReport__volumes[0].name": "incidents",
    "slaReport__volumes[0].claimName": "incidents",
    "slaReport__volumes[0].mountPath": "/inputs/incidents",
    "slaReport__daily__enabled": "false",
}
# As the values file has it: each day is reduced once.
DAILY: dict[str, Any] = {**HTTP, "slaReport__daily__enabled": "true", "slaReport__output__storage": "1Gi"}
MODES: dict[str, dict[str, Any]] = {
    "cron job": {},
    "client": {"slaReport__mode": "SparkSubmit"},
    "cluster": {"slaReport__mode": "SparkSubmit", "slaReport__sparkSubmit__deployMode": "cluster"},
    "spark operator": {"slaReport__mode": "ScheduledSparkApplication"},
}
# Which of the pods makes the report.
DRIVERS = {"cron job": "job", "client": "job", "cluster": "driver.yaml", "spark operator": "driver"}


def rendered(
    namespace: str = "system", *, values_file: dict[str, Any] | None = None, **values: str
) -> list[dict[str, Any]]:
    """Return the objects that the report adds to the release."""
    text = helm.template(namespace, chart=helm.CHART, capabilities=(SPARK_OPERATOR,), values_file=values_file, **values)
    return [
        one
        for one in helm.objects(text)
        if one["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sla-report"
    ]


def job_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    return found


def pod_templates(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every pod that comes of it, by what it is."""
    found = {}
    for item in objects:
        if item["kind"] == "CronJob":
            name = "daily" if item["metadata"]["name"].endswith("-daily") else "job"
            found[name] = item["spec"]["jobTemplate"]["spec"]["template"]
        elif item["kind"] == "ConfigMap":
            found |= {key: yaml.safe_load(text) for key, text in item["data"].items() if key.endswith(".yaml")}
        elif item["kind"] == "ScheduledSparkApplication":
            found |= {part: item["spec"]["template"][part]["template"] for part in ("driver", "executor")}
    return found


def words_of(objects: list[dict[str, Any]]) -> list[str]:
    """The words of `brokergroup sla report`, wherever the mode puts them."""
    for item in objects:
        if item["kind"] == "ScheduledSparkApplication":
            found: list[str] = item["spec"]["template"]["arguments"]
            return found
    words: list[str] = job_pod(objects)["spec"]["containers"][0]["args"]
    return words[words.index("report") :]


def parsed(words: list[str]) -> dict[str, Any]:
    """The values that the command's own parser reads from these words, of which the first is the command."""
    sla: Any = typer.main.get_group(app).commands["sla"]
    found: dict[str, Any] = sla.commands[words[0]].make_context(words[0], words[1:]).params
    return found
