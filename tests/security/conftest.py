"""Controller planes as `tests/controller` starts them."""

from tests.controller.conftest import start_plane

__all__ = ["start_plane"]
