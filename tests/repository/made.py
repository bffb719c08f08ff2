"""Runs pytest with this project's conftest on one test file made for the purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.lane_runner import count_tests

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Made:
    """How that run ended: its exit code, what it printed, and its counts; no test counts where it came to none."""

    code: int
    printed: str
    passed: int
    failed: int
    left_out: list[dict[str, str]]


def run_made(folder: Path, source: str, **environment: str) -> Made:
    """The file is `folder`/test_made.py."""
    (folder / "test_made.py").write_text(source, encoding="utf-8")
    (folder / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    report = folder / "report.xml"
    environment = {"PYTHONPATH": str(ROOT), "REQUIRE_REAL": "", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--junitxml={report}", str(folder)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = count_tests(report) if report.exists() else (0, 0, [])
    return Made(done.returncode, done.stdout + done.stderr, *counts)
