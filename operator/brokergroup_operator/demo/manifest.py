"""The BrokerGroup that the demo applies, out of a file of manifests."""

from pathlib import Path
from typing import Any

import yaml


class DemoManifestError(Exception):
    """The file holds no BrokerGroup that the demo can play; names the file, what is wrong and what was expected."""


def read_broker_group(file: Path) -> dict[str, Any]:
    """The file's BrokerGroup; documents of other kinds are left alone. Raises DemoManifestError."""
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise DemoManifestError(f"{file}: {error.strerror}; expected a file with a BrokerGroup") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DemoManifestError(f"{file}: no YAML: {' '.join(str(error).split())}") from error
    groups = [each for each in documents if isinstance(each, dict) and each.get("kind") == "BrokerGroup"]
    if len(groups) != 1:
        kinds = [each.get("kind") if isinstance(each, dict) else type(each).__name__ for each in documents]
        raise DemoManifestError(f"{file}: holds {kinds}; expected exactly one BrokerGroup")
    [group] = groups
    for section in ("metadata", "spec"):
        if not isinstance(group.get(section), dict):
            raise DemoManifestError(f"{file}: {section} is {group.get(section)!r}; expected a map")
    if not isinstance(group["metadata"].get("name"), str):
        raise DemoManifestError(f"{file}: metadata.name is {group['metadata'].get('name')!r}; expected a name")
    return group
