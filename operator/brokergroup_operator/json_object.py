"""A JSON object, as every package of the operator reads and writes it. Light: the kubectl plugin starts with it."""

from typing import Any

JsonObject = dict[str, Any]
