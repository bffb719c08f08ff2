"""A mount without a mount namespace: where a container's words name a mount path, they get the host's folder instead.

Rewritten are environment values, command and arguments. A path is recognised at its boundaries, so that in
``sed s/a/b/ /etc/rocketmq/broker.conf`` and in ``--config=/etc/rocketmq/broker.conf`` the mount ``/etc/rocketmq`` is meant, and in
``/etc/rocketmq-old`` it is not. Contents of files are never rewritten.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# What may stand before a path, and what may follow it, in a shell script, an option or a list of paths.
_BEFORE = r"""(?<![^\s=:,;'"`(<>|&@])"""
_AFTER = r"""(?=$|[/\s:,;'"`)<>|&*])"""


def mount_rewriter(mounts: Mapping[str, Path]) -> Callable[[str], str]:
    """A function that replaces every mount path in a text by its host folder; the longest mount path wins."""
    by_path = {path.rstrip("/") or "/": str(folder) for path, folder in mounts.items()}
    if not by_path:
        return lambda text: text
    longest_first = sorted(by_path, key=len, reverse=True)
    pattern = re.compile(_BEFORE + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER)
    return lambda text: pattern.sub(lambda match: by_path[match.group(1)], text)
