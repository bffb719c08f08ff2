"""The check that the chart carries the current kinds and dashboards notices every way in which it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


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
    for name in ("crds/a.yaml", "crds/b.yaml", "dashboards/d.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
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


def test_the_charts_page_on_artifacthub_lists_every_kind() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "brokergroup-operator" / "Chart.yaml").read_text(encoding="utf-8"))
    listed = {one["name"]: one["kind"] for one in yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])}
    kinds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "crds").glob("*.yaml")]
    assert listed == {one["metadata"]["name"]: one["spec"]["names"]["kind"] for one in kinds}
