"""What a page of docs/ links to elsewhere in the checkout becomes a page of the site too, under from/: no link leaves it.

A test that a page names as what shows a sentence is linked, too. A Markdown file is shown as it is, with its own links; any other
text as a block of code; a folder by its README.md, or as a list of what is in it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FROM = "from"
# Pages of the menu that no page of docs/ need link to.
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "tests/README.md")
PICTURES = {".png", ".svg"}
_FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_NAMED_TEST = re.compile(r"`(?P<path>(?:tests|benchmarks)/[\w/]+\.(?:py|txt))(?:::\w+)?`")
# The front matter of the page of a file that is no Markdown: such pages are left out of the search.
_CODE = "---\nsearch: {exclude: true}\n---\n"
_LINK = re.compile(r'\]\((?![a-z]+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]+)?(?P<title> "[^"]*")?\)')


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what the pages link to, and what those link to: until nothing is new."""
    texts = {one.src_uri: one.content_string for one in files.documentation_pages()}
    waiting = [*texts, *(f"{FROM}/{name}" for name in ALWAYS)]
    while waiting:
        uri = waiting.pop()
        text = texts[uri] if uri in texts else text_of(place_of(uri))
        mended, wanted = (text, set[str]()) if text.startswith(_CODE) else with_links_inside(text, uri)
        if (there := files.get_file_from_path(uri)) is not None:
            files.remove(there)
        files.append(File.generated(config, uri, content=mended))
        known = {*texts, *waiting, *(one.src_uri for one in files)}
        waiting.extend(sorted(wanted - known))
    return files


def text_of(path: Path) -> str:
    """What the page of a file elsewhere in the checkout shows."""
    if path.suffix == ".md" and path.is_file():
        return path.read_text(encoding="utf-8")
    shown = path.with_suffix("")  # the page's own .md: uri_of
    name = shown.relative_to(ROOT)
    if shown.name == "README":  # of a folder that has none
        inside = sorted(one.name for one in shown.parent.iterdir() if one.is_file())
        return f"# {name.parent}\n\n" + "".join(f"- [{one}]({one})\n" for one in inside)
    code = shown.read_text(encoding="utf-8")
    return f"{_CODE}# {name}\n\n````{shown.suffix.removeprefix('.')}\n{code}\n````\n"


def with_links_inside(text: str, uri: str) -> tuple[str, set[str]]:
    """The page with links to pages of the site, and those pages' names."""
    home = place_of(uri).parent
    wanted: set[str] = set()

    def page(link: re.Match[str]) -> str:
        target = (home / link["path"]).resolve()
        if not target.exists():
            raise PluginError(f"{uri}: {link[0]}: {target.relative_to(ROOT)} is not there")
        name = uri_of(target)
        if target.suffix not in PICTURES:
            wanted.add(name)
        return f"]({os.path.relpath(name, PurePosixPath(uri).parent)}{link['anchor'] or ''}{link['title'] or ''})"

    def test(part: str, *, is_link: bool) -> str:
        """A code span; that of a test leads to it, but where the page itself makes a link of it."""
        named = _NAMED_TEST.fullmatch(part)
        if named is None or is_link:
            return part
        name = uri_of(ROOT / named["path"])
        wanted.add(name)
        return f"[{part}]({os.path.relpath(name, PurePosixPath(uri).parent)})"

    parts = _FENCED.split(text)
    mended = [
        test(part, is_link=parts[at + 1].startswith("]")) if at % 2 else _LINK.sub(page, part)
        for at, part in enumerate(parts)
    ]
    return "".join(mended), wanted


def place_of(uri: str) -> Path:
    """Where in the checkout the page's text is from."""
    if uri.startswith(f"{FROM}/"):
        return ROOT / uri.removeprefix(f"{FROM}/")
    return DOCS / uri


def uri_of(target: Path) -> str:
    """The page that shows this file or folder."""
    if target.is_dir():
        target = target / "README.md"
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = target.relative_to(ROOT).as_posix()
    return f"{FROM}/{name}" if target.suffix in {".md", *PICTURES} else f"{FROM}/{name}.md"
