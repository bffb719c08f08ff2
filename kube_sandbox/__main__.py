"""``python -m kube_sandbox``: a sandbox with the CustomResourceDefinitions of a folder, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from .kubelet.environment import Image, ImageCatalogue
from .kubelet.files import FolderInUseError
from .real_api_server import ApiServerPrograms, ApiServerProgramsError


def main() -> int:
    """Return the exit code; 2 if an option cannot be used."""
    options = _parser().parse_args()
    try:
        options.data_dir.mkdir(parents=True, exist_ok=True)
        folders = [Path(options.api_server)] if options.api_server else []
        programs = None if options.api_server is None else ApiServerPrograms.find(folders)
        asyncio.run(_run(options, programs))
    except (ApiServerProgramsError, FolderInUseError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kube_sandbox", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="where volumes, logs and the kubeconfig are kept")
    parser.add_argument("--crds", type=_folder, help="a folder of CustomResourceDefinitions (*.yaml)")
    parser.add_argument(
        "--image",
        type=_image,
        action="append",
        default=[],
        metavar="PATTERN[=FOLDER]",
        help="an image that pods may name, with the folder of its programs (without: what is in PATH); may be repeated",
    )
    parser.add_argument("--port", type=int, default=0, help="port of the API on 127.0.0.1; 0 takes a free one")
    parser.add_argument(
        "--network",
        choices=("loopback", "netns"),
        default="loopback",
        help="an address for each start of a pod, or a network namespace for each (root)",
    )
    parser.add_argument(
        "--api-server",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="run a real kube-apiserver on a real etcd, from the folder or PATH, in place of the embedded API",
    )
    parser.add_argument("--kubeconfig", type=Path, help="where to write the kubeconfig, if not into the data folder")
    return parser


def _image(text: str) -> tuple[str, Image]:
    pattern, _, folder = text.partition("=")
    return pattern, Image(path=(_folder(folder) if folder else Path(sys.executable).parent,))


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return Path(text)


async def _run(options: argparse.Namespace, programs: ApiServerPrograms | None) -> None:
    from .sandbox import read_definitions, run_sandbox  # noqa: PLC0415 - a second of imports, when the options are right

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_sandbox(
        data_dir=options.data_dir,
        images=ImageCatalogue(dict(options.image)),
        definitions=read_definitions(options.crds) if options.crds else (),
        port=options.port,
        network=options.network,
        kubeconfig_path=options.kubeconfig,
        programs=programs,
        stop=stop,
    )


if __name__ == "__main__":
    sys.exit(main())
