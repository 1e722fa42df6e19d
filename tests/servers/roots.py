"""Servers of newer Debian suites than the machine's: unpacked, not installed.

`root_of("sid", "mysql-server-core")` has apt fetch a package and all that it depends on
from the machine's own mirror, once per machine, and unpacks them into a folder. Nothing
is installed, configured or mounted, and no right of root's is needed: each program of
such a folder is run by the folder's own dynamic loader, with the folder's own
libraries. So it has the paths, the users and the network of the machine, and is started
and ended as any other program.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.servers.process import needed
from tests.servers.shared import fetched, user_cache

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""They sign the newer suites as well."""
_FOR_ALL = Path("/var/cache")
"""Root's own cache folder is closed to the users that root runs servers as."""
_MERGED = ("bin", "lib", "lib64", "sbin")
"""Links into `usr`, which a package that is not unpacked here would make."""
_FOLDERS = ("usr/bin", "usr/sbin", "usr/lib/jvm/*/bin", "usr/lib/postgresql/*/bin")
_ELF = b"\x7fELF"
_MOVED = ".unwrapped"

_WRAPPER = """\
#!/bin/sh
exec {loader} --library-path {libraries} --argv0 "$0" {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Root:
    """Programs of another suite and all they need, in a folder that nobody changes."""

    path: Path

    def program(self, name: str) -> str:
        """Where a program is: run it like any other."""
        for folder in _FOLDERS:
            for found in self.path.glob(f"{folder}/{name}"):
                return str(found)
        pytest.fail(f"{self.path} has no {name}: delete that folder to fetch it anew")


def root_of(suite: str, *packages: str) -> Root:
    """The packages of a suite, e.g. `sid`, fetched if they are not there yet.

    They stay as they were fetched: delete the folder to fetch newer ones.
    """
    name = "-".join((suite, *packages))
    return Root(fetched(cache_folder(), name, partial(_fetch, suite, packages)))


def cache_folder() -> Path:
    """That of the user, open to other users if the user is root."""
    cache = user_cache()
    return cache if os.geteuid() else _FOR_ALL / cache.name


def _fetch(suite: str, packages: Sequence[str], folder: Path) -> None:
    fetching = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(fetching, ignore_errors=True)  # of somebody who was killed
    for name in _MERGED:
        (fetching / "usr" / name).mkdir(parents=True)
        (fetching / name).symlink_to(f"usr/{name}")
    apt = fetching / "apt"
    archives = _downloaded(suite, packages, apt)
    unpack = needed("dpkg-deb", "dpkg")
    for archive in archives:
        _run(unpack, "-x", archive, fetching, packages=packages, suite=suite)
    shutil.rmtree(apt)
    _make_links_relative(fetching)
    _wrap_programs(fetching, folder)
    fetching.chmod(0o755)
    fetching.rename(folder)


def _downloaded(suite: str, packages: Sequence[str], apt: Path) -> list[Path]:
    """The packages and what they depend on; apt's own state stays as it is."""
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()  # nothing is installed there
    signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    (apt / "sources.list").write_text(f"deb {signed}{_mirror()} {suite} main\n")
    options = {
        "Acquire::Retries": "3",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # may not enter the folder
        "Debug::NoLocking": "true",
        "Dir::Cache": apt / "cache",
        "Dir::Cache::archives": apt / "cache" / "archives",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
    }
    get = [needed("apt-get", "apt"), "-q", "-y"]
    for name, value in options.items():
        get += ["-o", f"{name}={value}"]
    _run(*get, "update", packages=packages, suite=suite)
    _run(
        *(*get, "install", "--download-only", *packages),
        packages=packages,
        suite=suite,
    )
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _mirror() -> str:
    """The one that the machine's apt has the machine's own suite from."""
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian":
        pytest.fail(f"servers of other suites need Debian: this is {system['ID']}")
    output = subprocess.run(
        [
            *(needed("apt-get", "apt"), "indextargets", "--no-release-info"),
            *("--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"),
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    of_suite = f"{system['VERSION_CODENAME']} main "
    for line in output.stdout.splitlines():
        if line.startswith(of_suite) and line.endswith("/debian/"):
            return line.removeprefix(of_suite)
    pytest.fail(f"apt has no mirror of Debian's {system['VERSION_CODENAME']}")


def _run(*command: str | Path, suite: str, packages: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(map(str, command))
        said = (done.stdout + done.stderr)[-2000:]
        wanted = " ".join(packages)
        pytest.fail(f"{wanted} of {suite} was not fetched: {shown}\n{said}")


def _make_links_relative(root: Path) -> None:
    """A link to `/etc/java` means the root's, not the machine's."""
    for path in _below(root):
        if path.is_symlink() and (target := path.readlink()).is_absolute():
            inside = root.joinpath(*target.parts[1:])
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))


def _wrap_programs(root: Path, final: Path) -> None:
    """Each program becomes a script that has the root's loader run it.

    In its own place: PostgreSQL's look for each other, and Redis' for their name.
    """
    libraries = list(root.glob("usr/lib/*-linux-gnu*/libc.so.6"))
    if not libraries:
        return  # a program of Go that needs none, such as bookworm's etcd
    (library,) = libraries
    (loader,) = root.glob("usr/lib*/ld-linux*.so.*")
    for path in list(_below(root)):
        if path.parent.name not in {"bin", "sbin"} or path.is_symlink():
            continue
        with path.open("rb") as file:
            if file.read(len(_ELF)) != _ELF:
                continue
        moved = path.rename(path.with_name(path.name + _MOVED))
        inside = {
            "loader": loader.relative_to(root),
            "libraries": library.parent.relative_to(root),
            "program": moved.relative_to(root),
        }
        text = _WRAPPER.format_map({name: final / at for name, at in inside.items()})
        path.write_text(text)
        path.chmod(0o755)


def _below(folder: Path) -> Iterator[Path]:
    """All files and links, as they are: no link is followed."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() or path.is_file():
                yield path
