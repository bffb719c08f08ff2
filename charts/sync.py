# ruff: noqa: INP001 - a script, not part of any package
"""Write what the charts have from elsewhere, since Helm reads no file outside of a chart's own folder.

The kinds and dashboards of brokergroup-operator are copies. The values.schema.json of rocketmq-cluster is made from the fields of
RocketMQCluster.spec, which are its values: a name that the CRD does not have is refused.

python charts/sync.py           write them
python charts/sync.py --check   say which differ, exit code 1 if any does
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "charts" / "brokergroup-operator" / "files"
CLUSTER_CHART = ROOT / "charts" / "rocketmq-cluster"
SOURCES = {"crds": "*.yaml", "dashboards": "*.json"}
CLUSTER_KIND = "brokergroup.dev_rocketmqclusters.yaml"
# Words of a CRD that mean nothing to Helm; the layout decides in place of the defaults.
OF_KUBERNETES = ("default", "description")
OPEN = "x-kubernetes-preserve-unknown-fields"
_TEXT: dict[str, Any] = {"type": "string"}
_DURATION: dict[str, Any] = {"type": "string", "pattern": "^$|^([0-9]+(h|m|s))+$"}
CERTIFICATE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "issuerRef": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"name": _TEXT, "kind": _TEXT, "group": _TEXT},
        },
        "duration": _DURATION,
        "renewBefore": _DURATION,
        "clusterDomain": {"type": "string", "minLength": 1},
    },
}


def wanted() -> dict[Path, bytes]:
    """Every file the charts should hold, and its content."""
    copies = {
        FILES / folder / source.name: source.read_bytes()
        for folder, pattern in SOURCES.items()
        for source in sorted((ROOT / folder).glob(pattern))
    }
    schema = json.dumps(values_schema(), indent=1).encode() + b"\n"
    return copies | {CLUSTER_CHART / "values.schema.json": schema}


def values_schema() -> dict[str, Any]:
    """The schema of rocketmq-cluster's values: its own, and the fields of RocketMQCluster.spec."""
    kind = yaml.load((ROOT / "crds" / CLUSTER_KIND).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    whole = kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    name = whole["metadata"]["properties"]["name"]
    layouts = yaml.safe_load((CLUSTER_CHART / "files" / "layouts.yaml").read_text(encoding="utf-8"))
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    own = {
        "global": {"type": "object"},
        "layout": {"enum": list(layouts)},
        "fullnameOverride": {"type": "string", "maxLength": name["maxLength"], "pattern": f"^$|{name['pattern']}"},
        "labels": texts,
        "annotations": texts,
        "certificate": CERTIFICATE,
    }
    fields = {field: closed(one, optional="default" not in one) for field, one in whole["spec"]["properties"].items()}
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "title": "Values of rocketmq-cluster; written by charts/sync.py",
        "type": "object",
        "additionalProperties": False,
        "required": ["layout"],
        "properties": own | fields,
    }


def closed(schema: dict[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """The CRD's schema as JSON Schema: an object with fields takes no others. `optional`: null stands for an absent value."""
    made = {key: value for key, value in schema.items() if key not in OF_KUBERNETES and not key.startswith("x-")}
    if optional:
        made["type"] = [made["type"], "null"]
    if "items" in made:
        made["items"] = closed(made["items"])
    if "properties" in made:
        made["properties"] = {field: closed(one) for field, one in made["properties"].items()}
        made["additionalProperties"] = OPEN in schema
    elif "additionalProperties" in made:
        made["additionalProperties"] = closed(made["additionalProperties"])
    return made


def differences() -> list[str]:
    """Files that are missing, differ or have no source any more."""
    copies = wanted()
    stale = [path for path, content in copies.items() if not path.is_file() or path.read_bytes() != content]
    present = {path for folder in SOURCES for path in (FILES / folder).glob("*")}
    return sorted(str(path.relative_to(ROOT)) for path in {*stale, *(present - copies.keys())})


def write() -> None:
    """Make the files equal to their sources."""
    copies = wanted()
    for folder in SOURCES:
        (FILES / folder).mkdir(parents=True, exist_ok=True)
        for path in (FILES / folder).glob("*"):
            if path not in copies:
                path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, report what differs")
    options = parser.parse_args(arguments)
    if not options.check:
        write()
        return 0
    different = differences()
    for path in different:
        sys.stderr.write(f"{path}: differs from its source; run `python charts/sync.py`\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
