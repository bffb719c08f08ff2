"""Option groups: a dataclass whose fields are options of the command line, and which a command takes as one argument.

`Annotated[..., typer.Option(...)]` stands at each field, once for all commands that have the group; a field may be a group too.
Light: the kubectl plugin starts with it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for typer: each argument whose type is a dataclass is replaced by that dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    options = [option for name, one in own.items() for option in _options(name, hints[name], one.default)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(**{name: _value(name, hints[name], values) for name in own})

    run.__annotations__ = {one.name: one.annotation for one in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def _options(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    if not is_dataclass(hint):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _options(field.name, hints[field.name], default)


def _value(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """Return the option's value, or the group made of its options' values."""
    if not is_dataclass(hint):
        return values[name]
    hints, group = get_type_hints(hint, include_extras=True), cast("Callable[..., Any]", hint)
    return group(**{field.name: _value(field.name, hints[field.name], values) for field in fields(hint)})
