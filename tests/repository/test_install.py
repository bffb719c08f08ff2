"""The installer of real parts: no partial installation, no missing part reported as present."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.parts import install, steps
from tests.real.parts.on_machine import go_missing
from tests.real.parts.steps import PartError

SCRIPT = Path(install.__file__)


def test_a_folder_built_aside_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "part-1"
    with pytest.raises(PartError), steps.built_aside(target) as aside:
        steps.run(["sh", "-c", f"touch {aside}/half; exit 1"])
    assert list(tmp_path.iterdir()) == []
    for content in ("first", "second"):
        with steps.built_aside(target) as aside:
            (aside / "program").write_text(content, encoding="utf-8")
            assert not target.exists() or (target / "program").read_text(encoding="utf-8") != content
        assert (target / "program").read_text(encoding="utf-8") == content
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_command_tells_its_name_its_code_and_its_last_words() -> None:
    with pytest.raises(PartError, match=r"(?s)sh -c .* exit code 3:.*last words"):
        steps.run(["sh", "-c", "echo last words >&2; exit 3"])
    with pytest.raises(PartError, match="no-such-program: no such program"):
        steps.run(["no-such-program"])


def test_a_part_whose_installation_brings_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    part = install.Part("hollow", "nothing", lambda: "still not here", lambda: None)
    monkeypatch.setitem(install.PARTS, "hollow", part)
    with pytest.raises(PartError, match="still not here"):
        install.bring("hollow")


def test_what_a_part_needs_is_brought_first(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[str] = []

    def part(name: str, *needs: str) -> install.Part:
        def missing() -> str | None:
            return None if name in here else "not here"

        return install.Part(name, name, missing, lambda: here.append(name), needs)

    monkeypatch.setitem(install.PARTS, "wheel", part("wheel"))
    monkeypatch.setitem(install.PARTS, "cart", part("cart", "wheel"))
    install.bring("cart")
    install.bring("cart")
    assert here == ["wheel", "cart"]


@pytest.mark.parametrize(("version", "why"), [("go1.19", "go 1.19 is here, 1.26 or newer"), ("go1.26", None)])
def test_the_go_version_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, why: str | None) -> None:
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = go_missing()
    assert (told is None) if why is None else (told is not None and why in told)


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "BROKERGROUP_CACHE": str(tmp_path), "HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False
        )

    listed = command("--list")
    assert listed.returncode == 0
    assert json.loads(listed.stdout) == {"asked": [], "failed": {}}
    assert f"helm            missing: not built yet: {tmp_path}/helm-" in listed.stderr
    assert re.search(rf"krew +missing: not built yet: {tmp_path}/krew-v[0-9.]+/kubectl-krew ", listed.stderr)
    refused = command("no-such-part")
    assert refused.returncode == 2
    assert "part no-such-part is unknown; expected one of root, java" in refused.stderr
