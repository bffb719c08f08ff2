"""The Dockerfile, read and replayed: its steps run in separate folders, without a container engine.

The replay copies what COPY names, runs what RUN says with the same environment, and then uses the result as the last stage
would: the entry point starts, from the installed package and not from this tree, and nothing of the development is in it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Stage:
    """One FROM and what follows it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]


def read_stages() -> tuple[list[tuple[str, str]], list[Stage]]:
    """The instructions before the first FROM, and the stages."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    before: list[tuple[str, str]] = []
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        instruction, _, value = line.partition(" ")
        if instruction == "FROM":
            base, _, name = value.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].steps.append((instruction, value.strip()))
        else:
            before.append((instruction, value.strip()))
    return before, stages


def stage(name: str) -> Stage:
    [found] = [one for one in read_stages()[1] if one.name == name]
    return found


def test_the_base_is_a_pinned_argument_and_the_operator_is_what_is_built_without_a_word() -> None:
    before, stages = read_stages()
    arguments = dict(value.split("=", 1) for instruction, value in before if instruction == "ARG")
    assert re.fullmatch(r"[a-z0-9./-]+:[0-9][a-zA-Z0-9._-]*", arguments["PYTHON_IMAGE"])
    assert [one.base for one in stages] == ["${PYTHON_IMAGE}", "build", "${PYTHON_IMAGE}", "build", "scratch"]
    assert [one.name for one in stages] == ["build", "build-sla", "sla", "slim", "operator"]


def test_the_last_stage_is_small_and_not_root() -> None:
    last = read_stages()[1][-1]
    assert last.values("RUN") == []
    assert last.values("COPY") == ["--from=slim /opt/root /", "--from=slim /opt/brokergroup /opt/brokergroup"]
    assert last.values("USER") == ["65532:65532"]
    script = (ROOT / ".ci" / "slim_image.py").read_text(encoding="utf-8")
    assert "\nUSER_ID = 65532\n" in script, "libraries ask for the user's name"
    assert stage("slim").values("RUN")[-1] == "python3 slim_image.py /opt/brokergroup /opt/root"


def test_the_image_of_the_reports_has_java_spark_a_named_user_and_the_archive() -> None:
    last = stage("sla")
    system, archive = last.values("RUN")
    # The package that the command names where there is no Java.
    source = (ROOT / "sla_reports" / "class_archive.py").read_text(encoding="utf-8")
    assert re.findall(r"openjdk-\d+-jre-headless", source) == re.findall(r"openjdk-\d+-jre-headless", system)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extra] = re.findall(r"--extra (\S+)", stage("build-sla").values("RUN")[0])
    assert any(one.startswith("pyspark") for one in project["optional-dependencies"][extra])
    user, _, group = last.values("USER")[0].partition(":")
    assert f"--gid {group} " in system
    assert f"--uid {user} --gid {group} " in system
    assert stage("operator").values("USER") == last.values("USER")
    # The archive fits the JVM and the jars of this very image: it is made when both are there, by root, and read by all.
    order = [last.steps.index((name, value)) for name, value in last.steps if name in {"COPY", "ENV", "RUN", "USER"}]
    assert order == sorted(order)
    assert [name for name, _ in last.steps if name in {"COPY", "ENV", "RUN", "USER"}] == [
        *("RUN", "COPY", "COPY", "ENV", "RUN", "USER")
    ]
    words = archive.split()
    assert words[:2] == ["python", "-m"]
    assert "BROKERGROUP_SPARK_ARCHIVE=/opt/brokergroup/" in last.values("ENV")[0]
    entry = json.loads(last.values("ENTRYPOINT")[0])
    for module in (words[2], entry[2]):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


def test_the_entry_point_is_a_console_script_of_the_distribution() -> None:
    last = read_stages()[1][-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert json.loads(last.values("ENTRYPOINT")[0])[0] in project["scripts"]


def test_what_is_copied_exists_and_is_all_of_the_distribution() -> None:
    stages = (read_stages()[1][0], stage("slim"))
    copied = {source for one in stages for value in one.values("COPY") for source in value.split()[:-1]}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert {package.split("/")[0] for package in wheel["packages"]} <= copied
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    }
    assert let_through == copied


def test_the_same_uv_as_in_the_makefile() -> None:
    versions = dict(value.split("=") for value in read_stages()[1][0].values("ARG"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"UV_VERSION := {versions['UV_VERSION']}\n" in makefile


@dataclass
class Replay:
    """A stage's steps carried out in a folder: /opt and /src become folders below it."""

    folder: Path
    environment: dict[str, str]
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        self.directory = self.folder

    def placed(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(opt|src)\b", rf"{self.folder}/\1", text)

    def carry_out(self, instruction: str, value: str) -> None:
        if instruction in {"ARG", "ENV"}:
            for setting in shlex.split(value):
                name, _, text = setting.partition("=")
                self.environment[name] = self.placed(text)
        elif instruction == "WORKDIR":
            self.directory = Path(self.placed(value))
            self.directory.mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            self.copy(*value.split())
        elif instruction == "RUN":
            done = subprocess.run(
                ["sh", "-ec", value],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"RUN {value}\n{done.stdout}{done.stderr}"
        else:
            pytest.fail(f"the replay does not know {instruction}")

    def copy(self, *words: str) -> None:
        *sources, target = words
        for source in sources:
            place = self.directory / target / (source if target == "./" else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)


def slim_package(package: Path) -> None:
    """The half of the stage `slim` that needs no image; what it copies of the base is seen on real nodes (tests/node)."""
    program = "import sys, pathlib, slim_image; slim_image.slim_package(pathlib.Path(sys.argv[1]))"
    program += "; slim_image.import_everything(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".ci"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", program, str(package)], env=environment, check=True, capture_output=True)


@pytest.mark.real("package-index")
@pytest.mark.timeout(600)
def test_the_build_stage_carried_out_gives_a_working_image(tmp_path: Path) -> None:
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
    # How this machine reaches its package index is in the environment; what would lead back to this tree is not handed on.
    kept = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    }
    replay = Replay(tmp_path / "build", {**kept, "PATH": f"{base / 'bin'}:/usr/local/bin:/usr/bin:/bin"})
    replay.folder.mkdir()
    for instruction, value in read_stages()[1][0].steps:
        replay.carry_out(instruction, value)
    slim_package(replay.folder / "opt" / "brokergroup")
    shutil.rmtree(replay.folder / "src")  # the last stage has no source tree
    image = replay.folder / "opt" / "brokergroup"
    clean = {"PATH": f"{image / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def in_image(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(image / "bin" / command[0]), *command[1:]],
            env=clean, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    entry = json.loads(read_stages()[1][-1].values("ENTRYPOINT")[0])
    told = in_image(*entry, "--help")
    assert told.returncode == 0, told.stderr
    assert "operator" in told.stdout
    assert "replica" in told.stdout
    where = in_image("python", "-c", "import brokergroup_operator as package; print(package.__file__)").stdout.strip()
    assert Path(where).is_relative_to(image)
    imported = in_image("python", "-c", "import kubernetes.client, kubernetes.aio.client")
    assert imported.returncode == 0, imported.stderr
    for absent in ("pytest", "mypy", "ruff", "pyspark"):
        assert in_image("python", "-c", f"import {absent}").returncode != 0, f"{absent} is in the image"
