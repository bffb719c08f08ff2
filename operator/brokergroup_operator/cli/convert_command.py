"""`brokergroup convert`: manifests and stored objects of v1alpha1 as v1beta1.

Read as Kubernetes reads YAML: no value is a date or a number of base 60. A document that does not change is written as it was,
letter by letter; of one that does change, the comments above it stay, and those inside are lost.
"""

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

STANDARD_INPUT: Final = "-"
_DOCUMENT = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_HEAD = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\n|---[ \t]*(?:#[^\n]*)?\n)*")
# Texts that no reader of YAML takes for another type, so that they need no quotes.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./=-]*|[0-9]+(?:m|Ki|Mi|Gi|Ti|Pi)|[0-9]+(?:\.[0-9]+){2,3}")
_NOT_PLAIN: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


def convert(
    files: Annotated[
        list[str], typer.Argument(help="YAML or JSON, also lists as kubectl get prints them; - for standard input")
    ],
    *,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write each file anew, instead of standard output")
    ] = False,
) -> None:
    """Print objects of v1alpha1 as v1beta1; others as they are. What is renamed or dropped is told on standard error."""
    from brokergroup_operator.api.conversion import Report

    if in_place and STANDARD_INPUT in files:
        raise _fail("--in-place with -: expected files")
    report = Report()
    texts = {name: _converted_text(name, _read(name), report) for name in files}
    for line in (*report.notes, *report.problems):
        typer.echo(line, err=True)
    if report.problems:
        typer.echo(f"convert: nothing is written: {len(report.problems)} values can't be carried over", err=True)
        raise typer.Exit(1)
    if not in_place:
        typer.echo("---\n".join(_ended(text) for text in texts.values()), nl=False)
        return
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == STANDARD_INPUT else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _fail(f"{name}: {error}") from error


def _converted_text(name: str, text: str, report: Any) -> str:
    import yaml

    from brokergroup_operator.api.conversion import converted

    parts = []
    for part in _DOCUMENT.split(text):
        try:
            document = yaml.load(part, Loader=_loader())  # noqa: S506 (a SafeLoader)
        except yaml.YAMLError as error:
            raise _fail(f"{name}: no YAML: {' '.join(str(error).split())}") from error
        result = converted(document, report)
        head = _HEAD.match(part)
        parts.append(part if result == document else f"{head[0] if head else ''}{_dumped(result)}")
    return "".join(parts)


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _dumped(document: Any) -> str:
    import yaml

    from brokergroup_operator.api.definitions.generate import PlainDumper

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN
        style = None if plain else "|" if "\n" in value else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper: Any = type("Dumper", (PlainDumper,), {})
    dumper.add_representer(str, text)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000))


def _loader() -> Any:
    import yaml

    # Without dates, and without the numbers of base 60.
    left_out = ("timestamp", "int", "float")
    resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in left_out]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # libyaml, where PyYAML has it: a CRD takes a tenth of the time.
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})
    whole = r"^[-+]?(?:0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"
    power = r"(?:[eE][-+]?[0-9]+)?"
    broken = rf"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*{power}|\.[0-9][0-9_]*{power}|\.(?:inf|Inf|INF|nan|NaN|NAN))$"
    loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(whole), list("-+0123456789"))
    loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(broken), list("-+0123456789."))
    return loader


def _fail(message: str) -> typer.Exit:
    typer.echo(f"convert: {message}", err=True)
    return typer.Exit(2)
