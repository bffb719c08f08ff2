"""`make test-page`: the live page in a real Chromium, ended with one line of JSON.

    python -m tests.page.run                  all of tests/page/in_browser.py
    python -m tests.page.run --pictures docs/pictures    the same, and screenshots for the documents

The line is `{"tests", "failed", "console_errors", "accessibility_violations", "foreign_requests", "measured"}`; the exit code is 0
only if nothing failed and the three counts are 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_TESTS = 15


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    parser.add_argument("-k", dest="chosen", help="only tests of this name")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="brokergroup-page-") as folder:
        findings_file = Path(folder) / "findings.json"
        environment = {**os.environ, "PAGE_FINDINGS": str(findings_file)}
        if options.pictures is not None:
            options.pictures.mkdir(parents=True, exist_ok=True)
            environment["PAGE_PICTURES"] = str(options.pictures.resolve())
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
        command += ["tests/page/in_browser.py", *(["-k", options.chosen] if options.chosen else [])]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        sys.stderr.write(done.stdout)
        findings = json.loads(findings_file.read_text()) if findings_file.exists() else {}
    return _verdict(done.stdout, done.returncode, findings, complete=options.chosen is None)


def _verdict(output: str, code: int, findings: dict[str, list[str]], *, complete: bool) -> int:
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", output)}
    passed = counted.get("passed", 0)
    line = {"tests": passed, "failed": counted.get("failed", 0) + counted.get("error", 0)}
    for name in ("console_errors", "accessibility_violations", "foreign_requests"):
        found = findings.get(name)
        line[name] = -1 if found is None else len(found)
        for text in found or []:
            print(f"{name}: {text}", file=sys.stderr)
    clean = all(line[name] == 0 for name in ("console_errors", "accessibility_violations", "foreign_requests"))
    print(json.dumps({**line, "measured": findings.get("measured", {})}))
    return 0 if code == 0 and clean and (passed >= LEAST_TESTS or not complete) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
