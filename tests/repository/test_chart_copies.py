"""The check that the charts carry the current kinds, dashboards and schema notices every way in which they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_KIND = """
spec:
  versions:
    - schema:
        openAPIV3Schema:
          properties:
            metadata: {properties: {name: {maxLength: 9, pattern: ^a$}}}
            spec:
              properties:
                size: {type: string, maxLength: 3, x-kubernetes-validations: []}
                pods:
                  type: object
                  default: {}
                  required: [name]
                  properties:
                    name: {type: string, description: Its name., default: a}
                    affinity: {type: object, x-kubernetes-preserve-unknown-fields: true}
                    labels: {type: object, additionalProperties: {type: string, description: Any.}}
                    mounts:
                      type: array
                      items: {type: object, properties: {name: {type: string}}, x-kubernetes-preserve-unknown-fields: true}
"""


@pytest.fixture
def sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """charts/sync.py working on a tree made here."""
    specification = importlib.util.spec_from_file_location("chart_sync", ROOT / "charts" / "sync.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "FILES", tmp_path / "charts" / "files")
    monkeypatch.setattr(module, "CLUSTER_CHART", tmp_path / "charts" / "cluster")
    for name in ("crds/a.yaml", "crds/b.yaml", "dashboards/d.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    for name in (f"crds/{module.CLUSTER_KIND}", "charts/cluster/files/layouts.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "crds" / module.CLUSTER_KIND).write_text(CLUSTER_KIND, encoding="utf-8")
    (tmp_path / "charts" / "cluster" / "files" / "layouts.yaml").write_text("{one: {}, two: {}}", encoding="utf-8")
    return module


def test_written_copies_are_equal(sync: ModuleType) -> None:
    assert sync.main(["--check"]) == 1
    assert sync.main([]) == 0
    assert sync.main(["--check"]) == 0


@pytest.mark.parametrize("fault", ["changed", "missing", "extra"])
def test_each_difference_is_told(
    sync: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    sync.main([])
    copy = tmp_path / "charts" / "files" / "crds" / "b.yaml"
    if fault == "changed":
        copy.write_text("other", encoding="utf-8")
    elif fault == "missing":
        copy.unlink()
    else:
        copy = copy.with_name("c.yaml")
        copy.write_text("stale", encoding="utf-8")
    assert sync.main(["--check"]) == 1
    assert copy.name in capsys.readouterr().err
    sync.main([])
    assert sync.main(["--check"]) == 0


@pytest.mark.parametrize("source", ["crds/brokergroup.dev_rocketmqclusters.yaml", "charts/cluster/files/layouts.yaml"])
def test_a_schema_of_other_fields_or_layouts_is_told(
    sync: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    sync.main([])
    text = (tmp_path / source).read_text(encoding="utf-8")
    (tmp_path / source).write_text(
        text.replace("maxLength: 3", "maxLength: 4").replace("two", "three"), encoding="utf-8"
    )
    assert sync.main(["--check"]) == 1
    assert "charts/cluster/values.schema.json" in capsys.readouterr().err


def test_the_schema_of_the_values_is_closed_where_the_crd_is(sync: ModuleType) -> None:
    schema = sync.values_schema()
    assert schema["additionalProperties"] is False
    found = schema["properties"]
    assert found["layout"] == {"enum": ["one", "two"]}
    assert (found["fullnameOverride"]["maxLength"], found["fullnameOverride"]["pattern"]) == (9, "^$|^a$")
    assert found["size"] == {"type": ["string", "null"], "maxLength": 3}
    assert found["pods"] == {
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "affinity": {"type": "object"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "mounts": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": True},
            },
        },
    }


def test_the_charts_page_on_artifacthub_lists_every_kind() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "brokergroup-operator" / "Chart.yaml").read_text(encoding="utf-8"))
    listed = {one["name"]: one["kind"] for one in yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])}
    kinds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "crds").glob("*.yaml")]
    assert listed == {one["metadata"]["name"]: one["spec"]["names"]["kind"] for one in kinds}
