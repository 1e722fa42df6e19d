"""The promises the repository makes about itself."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.second_look import MOST

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def run(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def files() -> list[Path]:
    """Every file that is committed or would be."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = (ROOT / name for name in listed.split("\0") if name)
    return sorted({path for path in paths if path.is_file()})


# ------------------------------------------------------------------ commands


def readme_commands() -> list[str]:
    """The one-line shell blocks of README: the demo first, then the tests."""
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(r"^```sh\n(.+)\n```$", text, flags=re.MULTILINE)


def test_ci_runs_readmes_test_command() -> None:
    (tests,) = (line for line in readme_commands() if "nox -s ci" in line)
    assert run(".ci/run", "--print") == f"{tests}\n"


@pytest.mark.parametrize(
    ("what", "first"), [("rwlock demo", []), ("nox -s ci", [".ci/setup"])]
)
def test_readme_command_makes_its_own_pinned_environment(
    what: str, first: list[str]
) -> None:
    (command,) = (line for line in readme_commands() if what in line)
    steps = command.split(" && ")
    assert steps[: len(first)] == first
    steps = steps[len(first) :]
    assert steps[0] == "python3 -m venv .venv"
    assert steps[1].startswith(".venv/bin/pip install -q -c constraints.txt ")
    assert steps[2:] == [f".venv/bin/{what}"]


def test_sessions_named_in_the_documents_exist(noxfile: ModuleType) -> None:
    text = "".join(
        (ROOT / name).read_text("utf-8")
        for name in ("README.md", "CONTRIBUTING.md", "constraints.txt")
    )
    named = set(re.findall(r"nox -s (\w+)", text))
    assert {"ci", "fast", "pins"} <= named
    assert named <= {name for name, _ in inspect.getmembers(noxfile, callable)}


# ------------------------------------------------------------------- noxfile


@pytest.fixture(scope="session")
def noxfile() -> ModuleType:
    """noxfile.py as a module, without running nox; what it does to PATH is undone."""
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"])
        spec.loader.exec_module(module)
    return module


def test_interpreters_are_sought_on_path_then_in_pyenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "versions"
    wanted = [versions / name / "bin" for name in ("3.12.1", "3.12.10", "3.13.0")]
    for folder in (*wanted, versions / "3.1.2" / "bin"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    shown = run(sys.executable, "-c", "import noxfile, os; print(os.environ['PATH'])")
    assert shown.strip() == os.pathsep.join([os.environ["PATH"], *map(str, wanted)])


# ------------------------------------------------------- hosts, paths, sizes

# Written so that this file does not match itself.
INDEX_HOST = re.compile(
    r"""
      pypi\.org/ (?!project/)            # a page about a package is fine
    | pythonhosted\.org
    | (?:repo1?|central)\.[\w.]* maven
    | registry\.npmjs
    | (?:proxy|sum)\.golang\.org
    | --(?:extra-)?index-url[ =] | --find-links[ =]
    | ://[^\s/]+/ (?:\S*/)? (?:simple|maven2?|artifactory|nexus)/
    """,
    re.VERBOSE | re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:root|work|home/\w+|Users/\w+)(?=/|\b)")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (INDEX_HOST, "https://py" + "pi.org/simple"),
        (INDEX_HOST, "https://files.python" + "hosted.org/x.whl"),
        (INDEX_HOST, "https://repo1." + "maven.org/maven2/org"),
        (INDEX_HOST, "https://repo." + "maven.apache.org/x"),
        (INDEX_HOST, "http://mirror.example/py" + "pi/simple/anyio"),
        (INDEX_HOST, "--index" + "-url x"),
        (INDEX_HOST, "--extra-index" + "-url=x"),
        (MACHINE_PATH, "# via -r /roo" + "t/x.txt"),
        (MACHINE_PATH, "'/wor" + "k/main'"),
        (MACHINE_PATH, "see /hom" + "e/jane/x"),
    ],
)
def test_the_patterns_find_what_they_are_for(
    pattern: re.Pattern[str], text: str
) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize(
    "text",
    ["https://pypi.org/project/anyio", "spec/work/x", "~/work", "rest/home/jane"],
)
def test_the_patterns_leave_plain_text_alone(text: str) -> None:
    assert not INDEX_HOST.search(text)
    assert not MACHINE_PATH.search(text)


def test_no_file_names_an_index_host_or_a_developers_folder() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files()
        for number, line in enumerate(
            path.read_text("utf-8", errors="replace").splitlines(), 1
        )
        if INDEX_HOST.search(line) or MACHINE_PATH.search(line)
    ]
    assert hits == []


def test_no_lock_file_is_committed() -> None:
    assert not [path for path in files() if path.name == "uv.lock"]


@pytest.mark.parametrize(
    "name",
    [
        ".ci",
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "aiorwlock_remote",
        "benchmarks",
        "constraints.txt",
        "docs",
        "examples",
        "noxfile.py",
        "pyproject.toml",
        "spec",
        "tests",
    ],
)
def test_layout(name: str) -> None:
    assert any(path.relative_to(ROOT).parts[0] == name for path in files())


@pytest.mark.parametrize("name", ["setup.py", "setup.cfg", "tox.ini", "Makefile"])
def test_settings_live_in_pyproject(name: str) -> None:
    assert not (ROOT / name).exists()


# ------------------------------------------------------------- dependencies


def requirements() -> set[str]:
    """The names pyproject.toml asks for anywhere, but our own."""
    project = PROJECT["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    asked = (entry for entries in lists for entry in entries if isinstance(entry, str))
    names = {re.split(r"[^\w.-]", entry)[0].lower() for entry in asked}
    return names - {project["name"]}


def pinned() -> set[str]:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    return set(re.findall(r"^([\w.-]+)==", text, flags=re.MULTILINE))


def test_every_requirement_is_pinned() -> None:
    assert requirements() - pinned() == set()


def test_the_core_needs_anyio_only() -> None:
    (only,) = PROJECT["project"]["dependencies"]
    assert only.startswith("anyio")


def test_all_is_every_extra() -> None:
    extras = dict(PROJECT["project"]["optional-dependencies"])
    (everything,) = extras.pop("all")
    named = re.fullmatch(r"aiorwlock-remote\[(.+)\]", everything)
    assert named is not None
    assert named[1].split(",") == sorted(extras)


def test_dev_is_every_group() -> None:
    groups = dict(PROJECT["dependency-groups"])
    included = [entry["include-group"] for entry in groups.pop("dev")]
    assert sorted(included) == sorted(groups)


def test_one_list_of_pythons(noxfile: ModuleType) -> None:
    classifiers = PROJECT["project"]["classifiers"]
    marker = "Programming Language :: Python :: 3."
    listed = [c.rpartition(" ")[2] for c in classifiers if c.startswith(marker)]
    assert tuple(listed) == noxfile.VERSIONS
    assert PROJECT["project"]["requires-python"] == f">={listed[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == listed[0]
    assert PROJECT["tool"]["pyright"]["pythonVersion"] == listed[0]


# ------------------------------------------------------------------ second looks


def test_few_tests_are_run_again_if_they_fail() -> None:
    """None of pure code, of waiting and renewing, or of the conformance suite."""
    marked = []
    for path in files():
        if path.suffix != ".py" or path.name in {"second_look.py", Path(__file__).name}:
            continue
        text = path.read_text("utf-8")
        where = path.relative_to(ROOT).as_posix()
        marked += [where] * len(re.findall(r"^ *@second_look\(", text, re.MULTILINE))
        assert "mark.flaky" not in text, where
        assert "--reruns" not in text, where
    assert 0 < len(marked) <= MOST
    never = ("cas", "conformance", "core", "locks", "runtime", "testing")
    forbidden = tuple(f"tests/{part}/" for part in never)
    assert not [where for where in marked if where.startswith(forbidden)]
