# ruff: noqa: INP001 - a script, not part of any package
"""Copy the generated kinds and dashboards into the chart: Helm reads no file outside of a chart's own folder.

python charts/sync.py           write the copies
python charts/sync.py --check   say which copies differ, exit code 1 if any does
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "charts" / "brokergroup-operator" / "files"
SOURCES = {"crds": "*.yaml", "dashboards": "*.json"}


def wanted() -> dict[Path, bytes]:
    """Every copy the chart should hold, and its content."""
    return {
        FILES / folder / source.name: source.read_bytes()
        for folder, pattern in SOURCES.items()
        for source in sorted((ROOT / folder).glob(pattern))
    }


def differences() -> list[str]:
    """Copies that are missing, differ or have no source any more."""
    copies = wanted()
    present = {path for folder in SOURCES for path in (FILES / folder).glob("*")}
    stale = [path for path, content in copies.items() if path not in present or path.read_bytes() != content]
    return sorted(str(path.relative_to(ROOT)) for path in {*stale, *(present - copies.keys())})


def write() -> None:
    """Make the copies equal to their sources."""
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
