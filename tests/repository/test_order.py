"""Tests that share a house of their module stay on one worker: spread over several, each worker would make the house anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
    import os
    from pathlib import Path

    import pytest


    @pytest.fixture(scope="module")
    def house():
        with Path("houses").open("a") as houses:
            houses.write(f"{os.getpid()}\\n")


    @pytest.mark.parametrize("number", range(12))
    def test_in_it(house, number):
        pass
"""
CONFTEST = """
    from tests.support import order

    pytest_itemcollected = order.mark
"""


def test_a_house_of_a_module_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(dedent(CONFTEST))
    (tmp_path / "test_house.py").write_text(dedent(MODULE))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "12 passed" in done.stdout, done.stdout
    assert len((tmp_path / "houses").read_text().split()) == 1
