"""Runs pytest with this project's conftest on one test file made for the purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Made:
    """How that run ended: its exit code, what it printed, its errors, and its count if it came to one."""

    code: int
    printed: str
    errors: str
    counts: dict[str, Any] | None


def run_made(folder: Path, source: str, **environment: str) -> Made:
    """The file is `folder`/test_made.py."""
    (folder / "test_made.py").write_text(source, encoding="utf-8")
    (folder / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    report = folder / "report.json"
    environment = {"BROKERGROUP_TEST_REPORT": str(report), "PYTHONPATH": str(ROOT), "REQUIRE_REAL": "", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    return Made(done.returncode, done.stdout, done.stderr, counts)


def count(folder: Path, source: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Only its exit code and its count; without a count, what it printed."""
    made = run_made(folder, source, **environment)
    return made.code, {"out": made.printed} if made.counts is None else made.counts
