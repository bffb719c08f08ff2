"""README's first screen in a fresh directory: `make demo ONCE=1`, then `make sla-report`, as a person runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real("java", "package-index"), pytest.mark.timeout(1800)]
_SECONDS = 400.0


# A killed master: whichever is seen first. A frozen one.
_BY_THE_DEMO = ("connectionRefused", "containerTerminated", "silence")


def _fresh(folder: Path) -> Path:
    """The files of a clone of this checkout as it is now; nothing that was made in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _make(folder: Path, *words: str) -> dict[str, Any]:
    """Run make, and return its last line's JSON."""
    # A user's environment lacks the variables of this test run.
    own = ("VIRTUAL_ENV", "PYTHON", "PYTEST", "MAKE", "BROKERGROUP", "REQUIRE", "UV_PROJECT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    with subprocess.Popen(
        ["make", *words], cwd=folder, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:  # fmt: skip
        try:
            said, errors = run.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            # As Ctrl-C: the demo ends its brokers.
            os.killpg(run.pid, signal.SIGINT)
            raise
    assert run.returncode == 0, f"{said[-3000:]}{errors[-3000:]}"
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_the_first_screen_of_the_readme(tmp_path: Path) -> None:
    folder = _fresh(tmp_path / "clone")
    verdict = _make(folder, "demo", "ONCE=1")
    assert verdict["lost"] == 0
    told = _make(folder, "sla-report")
    page = Path(unquote(urlsplit(told["page"]).path))
    assert page == folder / ".demo" / "report" / "report.html"
    words = page.read_text(encoding="utf-8")
    assert "Service level report" in words
    [group] = told["groups"]
    assert (told["reconciled"], told["incomplete"], told["unreadable_incidents"]) == (True, [], 0)
    # Both failovers of the demo, each with the cause and the trigger that the demo gave it.
    assert [one["trigger"] for one in told["incidents"] if one["trigger"] in _BY_THE_DEMO] == [
        one["trigger"] for one in verdict["failovers"]
    ]
    assert group["down_ms"] > 0
    if target := os.environ.get("SCREENSHOTS"):
        shutil.copy(page, Path(target) / "demo-report.html")
