"""Option groups: a dataclass whose fields are options of the command line, and which a command takes as one argument.

`Annotated[..., typer.Option(...)]` stands at each field, once for all commands that have the group. Light: the kubectl plugin
starts with it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for typer: each argument whose type is a dataclass is replaced by that dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for name, one in own.items():
        keyword_only = one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        parameters += _options_of(groups[name]) if name in groups else [keyword_only]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
