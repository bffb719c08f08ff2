"""Every block of commands in a page names the test that runs it, and each command in a sentence exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from brokergroup_operator.cli.main import app as brokergroup
from brokergroup_operator.kubectl.main import app as plugin
from tests.node.authority import BLOCKS as ANOTHER_AUTHORITY
from tests.node.helm_demo import BLOCKS as HELM_DEMO
from tests.node.live_page import NAME as DASHBOARD
from tests.node.without_operator import INSTALL_PAGE
from tests.support.page_blocks import IN_ONE_SANDBOX, IN_THE_SAME_CLUSTER, page_blocks

ROOT = Path(__file__).resolve().parents[2]
# Their blocks are run by `make test-observability` and `make test-node`, and judged by test_runbooks.py.
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.parent != RUNBOOKS
]
RUN_IN = {
    "sandbox": ["docs/start/quick-start.md", *IN_ONE_SANDBOX],
    "sandbox, exit 0 or 1": IN_ONE_SANDBOX,
    # tests/real/test_upgrade.py
    "upgrade": ["docs/tasks/upgrade.md"],
    "cluster": ["docs/start/quick-start.md", *IN_THE_SAME_CLUSTER],
    # tests/real/test_sla_page.py
    "prometheus and java": ["docs/tasks/sla.md"],
    "prometheus and java, exit 0, 2 or 3": ["docs/tasks/sla.md"],
    "written reports": ["docs/tasks/sla.md"],
    # tests/real/test_another_release.py
    "another release": ["docs/tasks/install.md"],
    # tests/release/test_published.py
    "a published image": ["docs/tasks/install.md"],
    "a published chart": ["docs/tasks/install.md"],
    "published files": ["docs/tasks/install.md"],
}
ON_NODES = {
    "docs/tasks/install.md": INSTALL_PAGE,
    "docs/tasks/page.md": [DASHBOARD],
    "docs/concepts/security.md": ANOTHER_AUTHORITY,
    "README.md": HELM_DEMO,
}
COMMAND = re.compile(
    r"(?:^|[`|&(]|\$ )\s*(?P<program>kubectl brokergroup|brokergroup) (?P<verb>[a-z][a-z-]*)(?P<rest>[^\n`|&>]*)",
    re.MULTILINE,
)
CODE = re.compile(r"```\w*\n.*?```|`[^`\n]+`", re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_each_block_of_commands_says_what_runs_it(page: str) -> None:
    for block in page_blocks(text_of(page)):
        if block.how == "run":
            assert page in RUN_IN.get(block.what, []), f"{page}: no test runs {block.what!r} there: {block.text}"
        elif block.how == "test-node":
            assert block.what in ON_NODES.get(page, ()), f"{page}: no check runs {block.what!r}"
        elif block.is_commands:
            assert block.how == "not run", f"{page}: no marker before: {block.text}"
            assert len(block.what) >= 15, f"{page}: {block.what!r} is no reason"


def test_a_block_without_a_marker_is_seen() -> None:
    [bare, shown] = page_blocks("text\n```\nkubectl get pods\n```\n<!-- run: sandbox -->\n```\n$ true\nsaid\n```\n")
    assert (bare.how, bare.is_commands) == (None, True)
    assert (shown.how, shown.what, shown.commands) == ("run", "sandbox", "true\n")


def test_a_marker_without_a_block_of_its_own_is_refused() -> None:
    for page in (
        "<!-- not run: one reason -->\n<!-- run: sandbox -->\n```\ntrue\n```\n",
        "<!-- run: sandbox -->\ntext\n",
    ):
        with pytest.raises(ValueError, match="expected a block on the next line"):
            page_blocks(page)


@cache
def groups() -> dict[str, TyperGroup]:
    return {"brokergroup": typer.main.get_group(brokergroup), "kubectl brokergroup": typer.main.get_group(plugin)}


@pytest.mark.parametrize("page", [*PAGES, *(f"docs/runbooks/{path.name}" for path in sorted(RUNBOOKS.glob("*.md")))])
def test_each_command_that_a_page_names_has_these_options(page: str) -> None:
    for code in CODE.findall(text_of(page)):
        for named in COMMAND.finditer(code):
            command = groups()[named["program"]].commands.get(named["verb"])
            assert command is not None, f"{page}: {named[0]}: no such verb"
            words = named["rest"].split()
            if isinstance(command, TyperGroup) and words and re.fullmatch(r"[a-z-]+", words[0]):
                assert words[0] in command.commands, f"{page}: {named[0]}: no such verb"
                command = command.commands[words[0]]
            known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]} | {"--help"}
            unknown = [word for word in re.findall(r"(?<=\s)--[a-z-]+", named["rest"]) if word not in known]
            assert isinstance(command, TyperGroup) or unknown == [], f"{page}: {named[0]}"


def test_the_page_of_commands_has_all_of_them() -> None:
    text = text_of("docs/reference/commands.md")
    for program, group in groups().items():
        for name, command in group.commands.items():
            inner = list(command.commands) if isinstance(command, TyperGroup) else [""]
            missing = [one for one in inner if f"`{program} {name} {one}".rstrip() + "`" not in text]
            assert missing == [], f"{program} {name}"
