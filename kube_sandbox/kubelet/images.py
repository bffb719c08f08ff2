"""What stands for an image: no layers, only the environment and the folder of programs that a container finds.

An image that the catalogue does not know cannot be "pulled": its container waits in ``ErrImagePull`` and then
``ImagePullBackOff`` with a message that lists what is known, as a misspelt image does everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# In an image's environment this stands for the container's own scratch folder (its root file system, so to speak).
CONTAINER_FOLDER = "{container}"


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
    """Globs over image names; the first that fits wins."""

    def __init__(self, images: Mapping[str, Image]) -> None:
        self._images = dict(images)

    def find(self, name: str) -> Image:
        """The image of that name; raises ``UnknownImageError``."""
        for pattern, image in self._images.items():
            if fnmatchcase(name, pattern):
                return image
        known = ", ".join(self._images) or "none"
        raise UnknownImageError(
            f"image {name!r} is not in the process kubelet's catalogue, which runs local programs; it knows: {known}"
        )
