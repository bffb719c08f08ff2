#!/usr/bin/env python3
"""Makes the operator's image small, inside its build.

    python3 slim_image.py /opt/brokergroup /opt/root

It takes out of the installed package what never runs: the sources of the Kubernetes client's thousand generated models, in both of
its halves (their bytecode stays, without docstrings), tests, C sources and symbols of libraries. And it copies
a root of what does run: the interpreter with its standard library, a shell with a few programs for probes and for people, the
shared libraries that all of these link, certificates, the account, and dpkg's entries for exactly the packages that own one of
those files, so that scanners see what is there. Any Debian base with a Python will do; neither package manager nor pip are in the
image. Needs the standard library, and binutils. The last line of standard output is JSON, sizes in bytes.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

OURS = (
    "brokergroup_operator",
    "controller_core",
    "kube_sandbox",
    "metric_names",
    "rocketmq_remoting",
    "rocketmq_replica",
)
USER_ID = 65532
ACCOUNT = f"brokergroup:x:{USER_ID}:{USER_ID}::/tmp:/usr/sbin/nologin\n"
NOT_RUN_FOLDERS = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "ensurepip",
    "tkinter",
    "turtledemo",
    "site-packages",
    "dist-packages",
}
KEPT_LEXERS = {"__init__.py", "_mapping.py", "python.py", "special.py", "text.py"}
NOT_RUN_SUFFIXES = {".pyx", ".pxd", ".pyi", ".c", ".h", ".cpp", ".a"}
# dd: the liveness probe of Python brokers.
PROGRAMS = (
    "sh",
    "cat",
    "date",
    "dd",
    "df",
    "env",
    "grep",
    "head",
    "id",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sleep",
    "tail",
)
FILES = ("/etc/debian_version", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/os-release", "/etc/ssl/certs/ca-certificates.crt",
         "/etc/ssl/openssl.cnf", "/usr/lib/ssl", "/usr/lib/locale/C.utf8")  # fmt: skip
# Loaded by name, not linked: the C library asks them for names of hosts and users.
LOADED = ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")


def main(package: Path, root: Path) -> None:
    slim_package(package)
    import_everything(package)
    image = Root(root)
    image.links_of_the_base()
    image.python(package)
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    for program in programs:
        image.add(program)
    image.add_libraries([*programs, Path(sys.executable).resolve(), *package.rglob("*.so*"), *image.compiled()])
    for name in FILES:
        image.add_tree(Path(name))
    image.account()
    image.dpkg_entries()
    print(json.dumps({"package": size(package), "root": size(root)}))  # noqa: T201


def slim_package(package: Path) -> None:
    [site] = package.glob("lib/python3*/site-packages")
    for lexer in (site / "pygments" / "lexers").glob("*.py"):
        if lexer.name not in KEPT_LEXERS:
            lexer.unlink()
    shutil.rmtree(site / "pygments" / "lexers" / "__pycache__", ignore_errors=True)
    # Our own modules import the asyncio half; its package imports the other.
    for half in ("client", "aio/client"):
        drop_sources(site / "kubernetes" / half)
    for library in site.rglob("*.so") if shutil.which("strip") else ():
        # uvloop comes with 12 MB of symbols for a debugger of C. The Dockerfile brings strip; a machine of tests may have none.
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)  # noqa: S603, S607
    for path in sorted(site.rglob("*")):
        if path.is_dir() and path.name in {"test", "tests"}:
            shutil.rmtree(path)
        elif path.suffix in NOT_RUN_SUFFIXES and path.is_file():
            path.unlink()


def drop_sources(client: Path) -> None:
    """Bytecode beside where the source was is imported without it."""
    # 2: without docstrings
    if not compileall.compile_dir(client, quiet=1, legacy=True, optimize=2):
        sys.exit(f"slim_image: {client} could not be compiled")
    for source in client.rglob("*.py"):
        source.unlink()
    for cache in list(client.rglob("__pycache__")):
        shutil.rmtree(cache)


def import_everything(package: Path) -> None:
    """Proof that nothing was taken out that a module of ours imports (the reports need Spark, which is not in this image)."""
    program = f"""
import importlib, pkgutil, rich.markdown, rich.syntax, rich.traceback
for top in {OURS!r}:
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(package / "bin" / "python"), "-c", program], env=environment, check=False)  # noqa: S603
    if done.returncode:
        sys.exit("slim_image: a module of ours misses what was taken out")


class Root:
    """The folder that becomes `/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._copied: set[str] = set()
        for name, mode in (
            ("tmp", 0o1777),
            ("etc", 0o755),
            ("var/lib/dpkg", 0o755),
            ("proc", 0o755),
            ("sys", 0o755),
            ("dev", 0o755),
        ):
            (self._folder / name).mkdir(parents=True)
            (self._folder / name).chmod(mode)

    def links_of_the_base(self) -> None:
        """/bin, /lib and /lib64 are links into /usr."""
        for name in ("bin", "sbin", "lib", "lib64"):
            if (path := Path("/") / name).is_symlink():
                (self._folder / name).symlink_to(path.readlink())

    def add(self, path: Path) -> None:
        """A file, with every link that leads to it."""
        path = path.parent.resolve() / path.name
        if str(path) in self._copied or not os.path.lexists(path):
            return
        self._copied.add(str(path))
        target = self._folder / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
        if path.is_symlink():
            self.add_tree(path.parent / path.readlink())

    def add_tree(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            for each in sorted(path.rglob("*")):
                if not each.is_dir() or each.is_symlink():
                    self.add(each)
        else:
            self.add(path)

    def python(self, package: Path) -> None:
        """The interpreter under each of its names, also those by which the package knows it, and the standard library."""
        executable = Path(sys.executable)
        for name in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
            self.add(executable.parent / name)
        self.add(executable.resolve())
        for link in package.glob("bin/python*"):
            self.add_tree(link.parent / link.readlink())
        library = Path(sysconfig.get_path("stdlib"))
        for folder, folders, files in os.walk(library):
            folders[:] = [name for name in folders if name not in NOT_RUN_FOLDERS and not name.startswith("config-")]
            for name in files:
                self.add(Path(folder) / name)

    def compiled(self) -> list[Path]:
        return [Path(name) for name in self._copied if ".so" in Path(name).name]

    def add_libraries(self, linked: list[Path]) -> None:
        """Everything that any of them links, as the loader finds it."""
        found: set[str] = set()
        for start in range(0, len(linked), 50):
            command = ["ldd", *map(str, linked[start : start + 50])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if missing := re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE):
                sys.exit(f"slim_image: no library {missing}")
            found |= set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE))
        for name in sorted(found):
            self.add(Path(name))
        [libc] = [Path(name) for name in found if Path(name).name == "libc.so.6"]
        for name in LOADED:
            self.add(libc.parent / name)
        for name in ("/etc/ld.so.conf", "/etc/ld.so.conf.d"):
            self.add_tree(Path(name))
        cache = ["ldconfig", "-r", str(self._folder)]
        subprocess.run(cache, check=True)  # noqa: S603

    def account(self) -> None:
        """Libraries ask for the user's name, and raise where the number has none."""
        kept = ("root:", "nobody:", "nogroup:")
        for name, entry in (("passwd", ACCOUNT), ("group", f"brokergroup:x:{USER_ID}:\n")):
            lines = Path("/etc", name).read_text(encoding="utf-8").splitlines(keepends=True)
            text = "".join(line for line in lines if line.startswith(kept)) + entry
            (self._folder / "etc" / name).write_text(text, encoding="utf-8")

    def dpkg_entries(self) -> None:
        """Of the packages that own a file of the root."""
        info, status = Path("/var/lib/dpkg/info"), Path("/var/lib/dpkg/status")
        if not status.is_file():
            return
        owners = {
            listing.name.removesuffix(".list").partition(":")[0]
            for listing in info.glob("*.list")
            if any(self._is_copied(line) for line in listing.read_text(encoding="utf-8").splitlines())
        }
        entries = status.read_text(encoding="utf-8").split("\n\n")
        kept = [
            entry
            for entry in entries
            if (name := re.search(r"^Package: (\S+)$", entry, re.MULTILINE)) and name[1] in owners
        ]
        (self._folder / "var" / "lib" / "dpkg" / "status").write_text("\n\n".join(kept) + "\n", encoding="utf-8")

    def _is_copied(self, name: str) -> bool:
        """dpkg knows many files by the links that lead into /usr."""
        return name in self._copied or f"/usr{name}" in self._copied


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
