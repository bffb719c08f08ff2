"""`brokergroup convert`: its input, its output, and cases without output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

GROUP = """\
# The group of the orders,
# in production.
apiVersion: brokergroup.dev/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec:
  implementation: replica  # to be Java one day
  replicas: 3
"""
OTHER = """\
apiVersion: v1
kind: ConfigMap   # as it is
metadata: {name: a}
data: {at: 2030-01-01T02:00:00Z, "y": 'on'}
"""
BAD = GROUP.replace("replica ", "kafka ")


def run(*arguments: str, stdin: str = "") -> Any:
    return CliRunner().invoke(app, ["convert", *arguments], input=stdin)


def test_standard_input_to_standard_output() -> None:
    result = run("-", stdin=f"{GROUP}---\n{OTHER}")
    assert result.exit_code == 0, result.output
    assert result.stderr == "BrokerGroup orders: spec.implementation replica is Python\n"
    head, _, rest = result.stdout.partition("---\n")
    assert head.startswith("# The group of the orders,\n# in production.\napiVersion: brokergroup.dev/v1beta1\n")
    assert yaml.safe_load(head)["spec"] == {"implementation": "Python", "replicas": 3}
    assert rest == OTHER, "the text is unchanged"


def test_json_and_a_list_as_kubectl_prints_it() -> None:
    items = [yaml.safe_load(GROUP), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    result = run("-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert result.exit_code == 0, result.output
    first, second = yaml.safe_load(result.stdout)["items"]
    assert (first["apiVersion"], first["spec"]["implementation"]) == ("brokergroup.dev/v1beta1", "Python")
    assert second == items[1]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(GROUP.rstrip("\n"), encoding="utf-8")
    result = run(*map(str, files))
    assert [one["spec"]["implementation"] for one in yaml.safe_load_all(result.stdout)] == ["Python", "Python"]
    assert files[0].read_text(encoding="utf-8") == GROUP.rstrip("\n")


def test_in_place(tmp_path: Path) -> None:
    file, other = tmp_path / "group.yaml", tmp_path / "other.yaml"
    file.write_text(GROUP, encoding="utf-8")
    other.write_text(OTHER, encoding="utf-8")
    result = run("--in-place", str(file), str(other))
    assert (result.exit_code, result.stdout) == (0, "")
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["implementation"] == "Python"
    assert other.read_text(encoding="utf-8") == OTHER
    once = file.read_text(encoding="utf-8")
    assert run("--in-place", str(file)).exit_code == 0
    assert file.read_text(encoding="utf-8") == once


@pytest.mark.parametrize("options", [(), ("--in-place",)])
def test_nothing_is_written_if_one_value_can_not_be_carried_over(tmp_path: Path, options: tuple[str, ...]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GROUP, encoding="utf-8")
    bad.write_text(BAD, encoding="utf-8")
    result = run(*options, str(good), str(bad))
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'BrokerGroup orders: spec.implementation is "kafka", expected one of rocketmq, replica' in result.stderr
    assert (good.read_text(encoding="utf-8"), bad.read_text(encoding="utf-8")) == (GROUP, BAD)


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (("-",), "a: [1", "-: no YAML"),
        (("/no/such/file",), "", "/no/such/file"),
        (("--in-place", "-"), GROUP, "expected files"),
    ],
)
def test_what_can_not_be_read_is_named(arguments: tuple[str, ...], stdin: str, complaint: str) -> None:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert complaint in result.stderr


TEXTS = (
    "2030-01-01T02:00:00Z", "12:30:45", "1e3", "y", "Off", "off", "~", "null", "0x1F", "5.5.0", "1.5", "007", "+1", ".5", "a: b",
    "- a", "# a", "", " a", "a ",
    "two\nlines\n", "a\tb", "8Gi", "1E", "ns:9876", "'", '"', "\u00e9", "@a", "!a", "&a", "*a", "%a", "=",
)  # fmt: skip


def test_a_text_stays_a_text_whoever_reads_it() -> None:
    """A quoted text stays quoted: other parsers read 1e3 as a number, and y as true."""
    former = yaml.safe_load(GROUP)
    former["spec"]["scheduling"] = {"affinity": {f"k{number}": text for number, text in enumerate(TEXTS)}}
    result = run("-", stdin=json.dumps(former))
    affinity = yaml.safe_load(result.stdout)["spec"]["podTemplate"]["spec"]["affinity"]
    assert tuple(affinity.values()) == TEXTS
    bare = [line.partition(": ")[2] for line in result.stdout.splitlines() if line.startswith("        k")]
    assert {text for text in bare if text[:1] not in "'|\""} == {"5.5.0", "8Gi"}


def test_values_are_read_as_kubernetes_reads_them() -> None:
    """In Kubernetes' YAML a date is a text, and so is a value like hours and minutes."""
    tail = "at: 2030-01-01T02:00:00Z, hours: 12:30:45, many: 12, half: 0.5, yes_: yes"
    result = run("-", stdin=f"{GROUP}  scheduling:\n    affinity: {{{tail}}}\n")
    assert yaml.safe_load(result.stdout)["spec"]["podTemplate"]["spec"]["affinity"] == {
        "at": "2030-01-01T02:00:00Z",
        "hours": "12:30:45",
        "many": 12,
        "half": 0.5,
        "yes_": True,
    }
