"""The repository is complete: no text refers to a document that is kept elsewhere.

The designs and measurements that the code rests on were written down outside; what is needed of them stands in docs/, in the code
beside what it explains, or has the number of an upstream issue.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "benchmarks", "charts", "controller_core", "metric_names", "crds", "dashboards", "docs", "examples",
    "kube_sandbox", "operator", "rocketmq_remoting", "rocketmq_replica", "sla_reports", "tests",
)  # fmt: skip
KINDS = {".py", ".md", ".txt", ".yaml", ".java", ".tpl", ".toml", ".json"}
NAME = re.compile(r"(?<![\w/.-])(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.md)\b")
SECTION = re.compile("\N{SECTION SIGN}")


def texts() -> list[Path]:
    found = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS and path.is_file()
    ]
    return [path for path in [*found, *ROOT.glob("*.md"), ROOT / "Makefile"] if path != Path(__file__)]


def test_no_text_names_a_document_that_is_not_here() -> None:
    here = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")} | {
        p.name for p in ROOT.glob("*.md")
    }
    missing = {
        f"{path.relative_to(ROOT)}: {found['name']}"
        for path in texts()
        for found in NAME.finditer(path.read_text(encoding="utf-8"))
        if found["name"] not in here
    }
    assert sorted(missing) == []


def test_no_text_counts_the_sections_of_one() -> None:
    """A section sign leads into a document; ours have headings."""
    assert [str(path.relative_to(ROOT)) for path in texts() if SECTION.search(path.read_text(encoding="utf-8"))] == []


def test_each_chart_value_that_a_field_names_is_one() -> None:
    """`kubectl explain` said of spec.version that its default is rocketmq.version."""
    file = ROOT / "charts" / "brokergroup-operator" / "values.yaml"
    values = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    fields = (ROOT / "docs" / "reference" / "brokergroup.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\(chart: ([\w.]+\w)", fields))
    assert named
    for name in named:
        functools.reduce(lambda part, key: part[key], name.split("."), values)
