"""The kube-apiserver of the tests: a start that fails ends what it has started, and says what the program wrote."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.parts import install
from tests.real.parts.process import RealProcessError
from tests.support import kube_apiserver
from tests.support.kube_apiserver import running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import Callable

# Answers /health at the address of --listen-client-urls.
HEALTHY = """#!/usr/bin/env python3
import sys, urllib.parse, http.server
url = next(word.partition("=")[2] for word in sys.argv if word.startswith("--listen-client-urls="))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", urllib.parse.urlsplit(url).port), Answer).serve_forever()
"""
ENDS = "#!/bin/sh\necho 'no such option'; exit 3\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts scripts in the place of etcd and kube-apiserver."""
    monkeypatch.setattr(install, "etcd_program", lambda: tmp_path / "etcd")
    monkeypatch.setattr(install, "kubernetes_folder", lambda: tmp_path)

    def write(etcd: str, kube_apiserver: str) -> None:
        for name, source in (("etcd", etcd), ("kube-apiserver", kube_apiserver)):
            (tmp_path / name).write_text(source)
            (tmp_path / name).chmod(0o755)

    return write


def mentioning(folder: Path) -> list[int]:
    """The living processes with the folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def until_one_mentions(folder: Path) -> None:
    """A process has no command line in the moment in which it becomes another program, as `env` becomes Python here."""
    ends_seconds = time.monotonic() + 15.0
    while len(mentioning(folder)) != 1:
        assert time.monotonic() < ends_seconds, f"{len(mentioning(folder))} processes with {folder}, expected 1"
        time.sleep(0.01)


@pytest.mark.parametrize(("etcd", "named"), [(ENDS, "etcd"), (HEALTHY, "kube-apiserver")], ids=["etcd", "server"])
def test_a_start_that_fails_leaves_no_process(
    tmp_path: Path, programs: Callable[[str, str], None], etcd: str, named: str
) -> None:
    programs(etcd, ENDS)
    with (
        pytest.raises(RealProcessError, match=re.compile(rf"{named} ended with 3 .*no such option", re.DOTALL)),
        running_kube_apiserver(tmp_path / "api"),
    ):
        pytest.fail("it started")
    assert mentioning(tmp_path / "api") == []


@pytest.mark.longer
def test_a_start_that_is_interrupted_leaves_no_process(
    tmp_path: Path, programs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_client: str) -> bool:
        until_one_mentions(tmp_path / "api")
        raise KeyboardInterrupt

    programs(HEALTHY, ENDS)
    monkeypatch.setattr(kube_apiserver, "etcd_is_healthy", interrupt)
    with pytest.raises(KeyboardInterrupt), running_kube_apiserver(tmp_path / "api"):
        pytest.fail("it started")
    assert mentioning(tmp_path / "api") == []
