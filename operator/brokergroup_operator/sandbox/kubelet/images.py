"""What stands for an image: no layers, only the environment and the folder of programs that a container finds.

An image that the catalogue does not know cannot be "pulled": its container waits in ``ErrImagePull`` and then
``ImagePullBackOff`` with a message that lists what is known, as a misspelt image does everywhere.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# In an image's environment this stands for the container's own scratch folder (its root file system, so to speak).
CONTAINER_FOLDER = "{container}"
OUR_IMAGES = ("brokergroup-operator", "brokergroup-replica", "rocketmq-replica")


class UnknownImageError(LookupError):
    """The catalogue has no entry for this image: the container waits with this message, nothing else is affected."""


@dataclass(frozen=True, slots=True)
class Image:
    """``environment`` is added under the container's own; ``path`` folders come first in PATH."""

    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    entrypoint: tuple[str, ...] = ()

    def environment_in(self, container_folder: Path) -> dict[str, str]:
        """The image's environment for one container."""
        return {
            name: value.replace(CONTAINER_FOLDER, str(container_folder)) for name, value in self.environment.items()
        }


class ImageCatalogue:
    """Globs over image names, the first that fits wins; later ``add`` goes before earlier ones."""

    def __init__(self, images: Mapping[str, Image] | None = None) -> None:
        self._images: dict[str, Image] = dict(images or {})

    @classmethod
    def default(cls, rocketmq_homes: Mapping[str, Path] | None = None) -> ImageCatalogue:
        """Our own image as the programs beside the running interpreter; RocketMQ's in the versions that are here.

        ``rocketmq_homes`` are folders with ``lib/`` in them, as in the image ``apache/rocketmq``, by version.
        """
        programs = Image(path=(Path(sys.executable).parent,))
        images = {f"*{name}:*": programs for name in OUR_IMAGES}
        for version, home in (installed_rocketmq_homes() if rocketmq_homes is None else rocketmq_homes).items():
            images[f"*apache/rocketmq:{version}"] = Image(environment={"ROCKETMQ_HOME": str(home)})
        return cls(images)

    def add(self, pattern: str, image: Image) -> None:
        """Know one more image; it goes before what is known already."""
        self._images = {pattern: image, **{known: value for known, value in self._images.items() if known != pattern}}

    def find(self, name: str) -> Image:
        """The image of that name; raises ``UnknownImageError``."""
        for pattern, image in self._images.items():
            if fnmatchcase(name, pattern):
                return image
        known = ", ".join(self._images) or "none"
        raise UnknownImageError(
            f"image {name!r} is not in the process kubelet's catalogue, which runs local programs; it knows: {known}"
        )


def installed_rocketmq_homes() -> dict[str, Path]:
    """RocketMQ's versions in the cache of real parts (tests/real/parts/install.py), by version."""
    cache = Path(os.environ.get("BROKERGROUP_CACHE") or Path.home() / ".cache" / "brokergroup-operator")
    return {
        lib.parent.name.removeprefix("rocketmq-"): lib.parent
        for lib in sorted(cache.glob("rocketmq-*/lib"))
        if lib.is_dir()
    }
