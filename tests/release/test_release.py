"""The checks of a release find what they are for; the cheap ones are done here, too."""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import aiorwlock_remote
from tests.release import licences, lowest
from tests.release.artifacts import (
    PACKAGE,
    committed,
    differences,
    machine_paths,
    sdist_problems,
    wheel_problems,
)
from tests.release.installed import MODULES
from tests.release.pythons import interpreter

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
INFO = f"{PACKAGE}-1.dist-info"
SOUND = {
    f"{PACKAGE}/__init__.py",
    f"{PACKAGE}/py.typed",
    f"{PACKAGE}/x.cql",
    f"{PACKAGE}/x.html",
    f"{PACKAGE}/x.lua",
    f"{PACKAGE}/x.sql",
}
ENDS = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
OF_THE_WHEEL = SOUND | {f"{INFO}/{name}" for name in ENDS}


def wheel_of(folder: Path, names: set[str], content: str = "") -> Path:
    path = folder / f"{PACKAGE}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return path


# ------------------------------------------------------------------ artifacts


def test_a_sound_wheel(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, OF_THE_WHEEL)
    assert not list(wheel_problems(wheel, SOUND | {"tests/test_x.py"}))


@pytest.mark.parametrize("missing", sorted(OF_THE_WHEEL))
def test_a_file_missing_in_a_wheel_is_found(tmp_path: Path, missing: str) -> None:
    wheel = wheel_of(tmp_path, OF_THE_WHEEL - {missing})
    assert f"not in the wheel: {missing}" in list(wheel_problems(wheel, SOUND))


@pytest.mark.parametrize(
    "name", ["tests/test_x.py", f"{PACKAGE}/__pycache__/x.pyc", f"{PACKAGE}/new.py"]
)
def test_a_foreign_file_in_a_wheel_is_found(tmp_path: Path, name: str) -> None:
    wheel = wheel_of(tmp_path, OF_THE_WHEEL | {name})
    assert f"{name} is in the wheel" in list(wheel_problems(wheel, SOUND))


def test_a_kind_of_asset_that_is_gone_is_found(tmp_path: Path) -> None:
    without = {name for name in SOUND if not name.endswith(".lua")}
    wheel = wheel_of(tmp_path, {name for name in OF_THE_WHEEL if "lua" not in name})
    assert list(wheel_problems(wheel, without)) == ["the wheel has no .lua"]


def test_an_sdist_is_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "x-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("PKG-INFO", "README.md", "dist/old.whl"):
            member = tarfile.TarInfo(f"x-1/{name}")
            archive.addfile(member, io.BytesIO())
    assert list(sdist_problems(path, {"README.md", "tests/test_x.py"})) == [
        "not in the sdist: tests/test_x.py",
        "dist/old.whl is in the sdist",
        "dist/old.whl is of a cache",
    ]


def test_a_folder_of_the_machine_is_found() -> None:
    contents = {"a": b"fine", "b": f"built in {ROOT}/x".encode()}
    assert list(machine_paths(contents)) == [f"b names {ROOT}"]


def test_builds_that_differ_are_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    assert not list(differences({"x": one}, {"x": one}))
    assert list(differences({"x": one}, {"x": other})) == [
        "x: two builds of one commit differ"
    ]
    assert list(differences({"x": one}, {})) == ["built ['x'] and []"]


def test_the_commit_has_each_kind_of_asset() -> None:
    names = {name for name in committed() if name.startswith(PACKAGE)}
    for suffix in (".cql", ".html", ".lua", ".py", ".sql", "py.typed"):
        assert any(name.endswith(suffix) for name in names)


def test_each_extra_is_tried() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    assert set(MODULES) - {""} == extras - {"all"}


# ------------------------------------------------------------------- licences


def test_all_licences_are_allowed() -> None:
    packages = licences.dependencies(licences.NAME, "all")
    assert len(packages) > 40
    assert not list(licences.refused(packages, licences.allowed()))


class Packaged(Distribution):
    def __init__(self, text: str) -> None:
        self.text = f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{text}\n"

    def read_text(self, filename: str) -> str | None:
        return self.text if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("License-Expression: MIT", "MIT"),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        ("License: Apache 2.0", "Apache-2.0"),
        ("License: MIT License\n        \n        Copyright", "MIT"),
        ("License-Expression: AGPL-3.0-only OR MIT", "AGPL-3.0-only OR MIT"),
    ],
)
def test_an_allowed_licence(text: str, expression: str) -> None:
    package = Packaged(text)
    assert licences.licence(package) == expression
    assert not list(licences.refused({"x": package}, licences.allowed()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "License: proprietary",
        "License-Expression: GPL-3.0-only",
        "License-Expression: MIT AND GPL-3.0-only",
        "Classifier: License :: OSI Approved :: GNU Affero General Public License v3",
    ],
)
def test_another_licence_is_refused(text: str) -> None:
    (problem,) = licences.refused({"x": Packaged(text)}, licences.allowed())
    assert problem.startswith("x 1: ")


# ------------------------------------------------------------------- versions


def test_each_dependency_has_one_lower_bound() -> None:
    bounds = lowest.bounds(PROJECT["project"])
    assert {"anyio", "redis", "starlette", "uvicorn"} <= bounds.keys()


def test_a_bound_that_cannot_be_tested_is_found() -> None:
    bounds = {"click": Version("8.1"), "rich": Version("13.7")}
    found = lowest.resolved("click==8.1.3\nrich==13.7.0 ; python_version > '3'\n")
    assert list(lowest.untested(bounds, found)) == [
        "click>=8.1 cannot be tested: the lowest is 8.1.3"
    ]


def test_a_python_that_nobody_has() -> None:
    with pytest.raises(LookupError, match=r"python9\.9 is not on PATH"):
        interpreter("9.9")


def test_one_version() -> None:
    assert aiorwlock_remote.__version__ == PROJECT["project"]["version"]


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, flags=re.MULTILINE)
    assert headings[:2] == ["Unreleased", PROJECT["project"]["version"]]


def test_workflows_run_the_commands_of_this_project() -> None:
    folder = ROOT / ".github" / "workflows"
    tests, release = (
        (folder / name).read_text("utf-8") for name in ("tests.yml", "release.yml")
    )
    listed = re.search(r"python: \[(.+)\]", tests)
    assert listed is not None
    versions = [
        f'"{c.rpartition(" ")[2]}"'
        for c in PROJECT["project"]["classifiers"]
        if c.startswith("Programming Language :: Python :: 3.")
    ]
    assert listed[1].split(", ") == versions
    assert "run: .ci/run" in tests
    assert "run: nox -s build" in release
    assert "secrets." not in tests + release
