"""The image's entry point: what Spark's two words, our own one and anybody's command become."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sla_reports.pod_entrypoint import SPARK_HOME, EntryPointError, application_file, command_of

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_EXECUTOR_POD_NAME": "report-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_0": "-Dfirst",
    "SPARK_JAVA_OPT_10": "-Dlast",
    "SPARK_JAVA_OPT_2": "-Dsecond=with a space",
}


@pytest.mark.real("java")
def test_an_executor_is_told_all_that_spark_said() -> None:
    program, *rest = command_of(["executor"], EXECUTOR)
    assert Path(program).name == "java"
    assert rest[:5] == ["-Dfirst", "-Dsecond=with a space", "-Dlast", "-Xms1g", "-Xmx1g"]
    conf, first, *others = rest[rest.index("-cp") + 1].split(":")
    assert (conf, others) == (f"{SPARK_HOME}/conf", [f"{SPARK_HOME}/jars/*", "/opt/spark/conf"])
    assert Path(first).is_file()
    said = rest[rest.index("-cp") + 3 :]
    options = dict(zip(said[::2], said[1::2], strict=True))
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.3",
        "--resourceProfileId": "0",
        "--podName": "report-exec-3",
    }


@pytest.mark.real("java")
def test_an_executors_class_path_begins_as_spark_submits() -> None:
    """The class archive is made by that one, and fits no other beginning."""
    command = [*command_of(["submit"], {}), "--version"]
    environment = {**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=True)
    [submits] = set(re.findall(r"^Spark Command: .* -cp (\S+) ", done.stderr, re.MULTILINE))
    executor = command_of(["executor"], EXECUTOR)
    assert executor[executor.index("-cp") + 1].startswith(submits)


def test_a_driver_is_spark_submit_in_its_own_pod() -> None:
    words = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py", "report"]
    command = command_of(words, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"})
    assert Path(command[0]).is_file()
    assert command[1:5] == ["--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.1"]
    assert command[5:] == words[1:]


def test_our_word_submits_the_application_of_the_image() -> None:
    command = command_of(["submit", "--master", "k8s://https://kubernetes", "{application}", "report"], {})
    assert command[0].endswith("/bin/spark-submit")
    assert command[1:] == ["--master", "k8s://https://kubernetes", application_file(), "report"]
    assert Path(application_file().removeprefix("local://")).is_file()


@pytest.mark.parametrize("words", [["sla", "report"], ["--help"], []])
def test_all_else_is_a_command_of_ours(words: list[str]) -> None:
    assert command_of(words, {}) == ["brokergroup", *words]


@pytest.mark.parametrize(
    ("words", "variable"), [(["driver"], "SPARK_DRIVER_BIND_ADDRESS"), (["executor"], "SPARK_EXECUTOR_MEMORY")]
)
def test_a_pod_that_spark_told_nothing_says_what_is_missing(words: list[str], variable: str) -> None:
    with pytest.raises(EntryPointError, match=f"{variable}: missing"):
        command_of(words, {})
