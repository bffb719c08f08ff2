"""`python -m brokergroup_operator.observe.dashboards` writes dashboards/, `--check` only compares."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from brokergroup_operator.observe.dashboards import DASHBOARDS

_FOLDER = Path("dashboards")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dashboards, or with `--check` answer 1 when a file differs from what would be written."""
    parser = argparse.ArgumentParser(description="Write dashboards/ from the metric names.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 on a difference")
    check = parser.parse_args(arguments).check
    wanted = {_FOLDER / one.file_name: json.dumps(one.as_json(), indent=2) + "\n" for one in DASHBOARDS}
    present = set(_FOLDER.glob("*.json"))
    if not check:
        for path in present - wanted.keys():
            path.unlink()
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    differ = [path for path, text in wanted.items() if path not in present or path.read_text() != text]
    for path in sorted({*differ, *(present - wanted.keys())}):
        sys.stderr.write(f"{path} differs from its source: run `make generate`\n")
    return 1 if differ or present - wanted.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
