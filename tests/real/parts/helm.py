"""The real Helm, run on the charts of this tree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.real.parts import install

CHART = Path(__file__).resolve().parents[3] / "charts" / "brokergroup-operator"


def helm(*arguments: str, standard_input: str = "") -> subprocess.CompletedProcess[str]:
    """Run Helm; the caller looks at the exit code and the output. A Helm built from its module thinks of an old cluster."""
    command = [str(install.helm_program()), *arguments, "--kube-version", install.KUBERNETES_VERSION]
    return subprocess.run(command, input=standard_input, capture_output=True, text=True, timeout=60, check=False)


def template(
    namespace: str,
    *,
    chart: Path = CHART,
    release: str = "bg",
    capabilities: tuple[str, ...] = (),
    values_file: dict[str, Any] | None = None,
    **values: str,
) -> str:
    """Return the chart rendered. Raise ValueError with Helm's words if Helm refuses the values.

    `a__b` in a keyword stands for the value a.b; `values_file` is for values that `--set` cannot spell. `capabilities`: kinds of
    others that the cluster has.
    """
    settings = [f"--set={name.replace('__', '.')}={value}" for name, value in values.items()]
    settings += [f"--api-versions={one}" for one in capabilities]
    settings += ["--values=-"] if values_file else []
    done = helm(
        *("template", release, str(chart), "--namespace", namespace, *settings),
        standard_input=yaml.safe_dump(values_file) if values_file else "",
    )
    if done.returncode != 0:
        raise ValueError(f"helm template {settings}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def objects(manifests: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart."""
    return [document for document in yaml.safe_load_all(manifests) if document]


def rendered(namespace: str, **values: Any) -> list[dict[str, Any]]:
    """The objects of the chart with these values, as `template` takes them."""
    return objects(template(namespace, **values))


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    [found] = of_kind(objects, kind)
    return found
