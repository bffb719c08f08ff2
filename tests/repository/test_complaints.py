"""docs/contributors/complaints.md: every number of the list has a line; every test it names is there, and tells these numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributors" / "complaints.md"
# Each tracker with its numbers; a number without a name in the page belongs to apache/rocketmq-operator.
OPERATOR = "apache/rocketmq-operator"
NUMBERS = {
    OPERATOR: (
        8, 19, 36, 50, 52, 54, 55, 56, 60, 61, 65, 67, 68, 69, 70, 80, 84, 92, 106, 109, 117, 133, 149, 153, 154, 158, 176, 183,
        198, 201, 202, 203, 216, 218, 219, 226, 230, 239, 240,
    ),
    "apache/rocketmq": (1450, 1989, 2310, 3991, 4443, 4771, 5588, 5858, 6435, 9804, 9897, 9987, 10834),
    "apache/rocketmq-docker": (115,),
    "apache/rocketmq-dashboard": (233, 361),
    "itboon/rocketmq-helm": (19, 23, 33, 35),
    "CNPG": (778, 6091, 6146, 6154, 6168, 7407, 7465, 7888, 8174, 11347, 11348),
    "Patroni": (118, 759, 2868, 3344, 3462),
    "zalando/postgres-operator": (993, 1145, 2890, 3058),
    "Strimzi": (3710, 7800, 10647, 10936, 12649, 13101),
    "dragonfly-operator": (227, 302),
    "canonical/postgresql-operator": (712, 1152),
    "OT-CONTAINER-KIT/redis-operator": (421,),
    "koperator": (237, 694),
    "emqx/emqx-operator": (1151,),
    "percona/percona-server-mongodb-operator": (672,),
    "scylladb/scylla-operator": (2722,),
    "VictoriaMetrics/operator": (90,),
    "argoproj/argo-cd": (1250, 3050, 10974),
    "pingcap/tidb-operator": (1246,),
    "datastax/kaap": (113,),
    "VictoriaMetrics/VictoriaMetrics": (3161, 4721),
    "thanos-io/thanos": (622, 2737, 3010),
    "prometheus/prometheus": (4848, 12775),
    "pyrra-dev/pyrra": (326, 1289),
    "grafana/mimir": (4738, 5509),
    "grafana/grafana": (30662,),
    "skyhook-io/radar": (1734,),
    "kedacore/charts": (434,),
    "prometheus-operator/prometheus-operator": (356,),
    "NVIDIA/gpu-operator": (811,),
    "elastic/kibana": (198776,),
}  # fmt: skip
# These have a page of their own: each is a line of tests/upstream/README.md.
UPSTREAM = (7017, 6662, 5663, 7689, 10666, 10812, 5712, 5009, 8380, 5745)
NAMED_TEST = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)`")


def lines() -> list[tuple[str, list[str]]]:
    """First cell and the other cells of each line of a table."""
    rows = [
        line.strip("|\n ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
    ]
    return [(row[0], row[1:]) for row in rows if row[0] != "number" and not row[0].startswith("--")]


def numbers_of(cell: str) -> list[tuple[str, int]]:
    """`54, apache/rocketmq 2310` with the tracker of each: that of the number before it, at first our model's."""
    found, tracker = [], OPERATOR
    for part in cell.split(", "):
        name, _, number = part.rpartition(" ")
        tracker = name or tracker
        found.append((tracker, int(number)))
    return found


def told_by(path: str, name: str) -> str:
    """The test's name and docstring; fails where there is no such test."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return f"{name} {ast.get_docstring(node) or ''}"
    pytest.fail(f"{PAGE.name} names {path}::{name}, which is not there")


def test_every_number_of_the_list_has_its_line_and_no_other() -> None:
    on_the_page = {number for cell, _ in lines() for number in numbers_of(cell)}
    assert on_the_page == {(tracker, number) for tracker, numbers in NUMBERS.items() for number in numbers}


def test_every_number_is_told_by_a_test_or_says_why_not() -> None:
    for cell, rest in lines():
        named = NAMED_TEST.findall(rest[-1])
        told = " ".join(told_by(path, name) for path, name in named)
        if not named:
            assert "**not built**" in rest[-2] or rest[-1].startswith("why not: "), (
                f"{cell}: neither a test nor a reason"
            )
            continue
        for _, number in numbers_of(cell):
            # A field's own test covers it by the field's name.
            if number in (60, 61, 67, 106, 226) and "test_every_field" in rest[-1]:
                continue
            assert re.search(rf"(#|_){number}\b|_{number}_", told), (
                f"{cell}: no test of this line has {number} in its docstring"
            )


def test_what_the_page_leaves_to_upstreams_page_is_there() -> None:
    page = (ROOT / "tests" / "upstream" / "README.md").read_text(encoding="utf-8")
    first_cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    assert [number for number in UPSTREAM if not re.search(rf"\b{number}\b", first_cells)] == []
