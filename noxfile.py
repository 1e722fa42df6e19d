"""The project's tasks. `nox -l` lists them, `nox -s fast` is the developer's loop."""

from __future__ import annotations

import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nox

if TYPE_CHECKING:
    from collections.abc import Callable

nox.needs_version = ">=2026.8.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "layers", "typecheck", "fast"]

ROOT = Path(__file__).parent
PACKAGE = "aiorwlock_remote"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CONSTRAINTS = ("-c", "constraints.txt")

# On PATH pyenv has a stand-in for each of its versions, which fails unless that version
# is activated. With the versions themselves at the end of PATH, nox finds them.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
for version in VERSIONS:
    for folder in sorted(PYENV.glob(f"versions/{version}.*/bin")):
        os.environ["PATH"] += f"{os.pathsep}{folder}"

# With this variable each worker and each `rwlock` of the tests would compile all that
# it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# ----------------------------------------------------------------- installs


def install(session: nox.Session, *groups: str, package: str = "") -> None:
    """Install dependency groups, and the package as `package` says, all pinned."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    wanted = nox.project.dependency_groups(project, *groups)
    session.install(*CONSTRAINTS, *package.split(), *wanted)


# Editable, so that a reused environment never tests yesterday's code.
WORKING_COPY = "-e .[all]"


# ----------------------------------------------------------------- sessions

# Few tests are repeated if they fail (tests/second_look.py): all failures are shown.
SECOND_LOOKS = "--rerun-show-tracebacks"


@nox.session(python=VERSIONS)
def tests(session: nox.Session) -> None:
    """Run the full tests on every Python found."""
    install(session, "test", package=WORKING_COPY)
    session.run("pytest", *session.posargs)


@nox.session
def fast(session: nox.Session) -> None:
    """Run the tests that are not slow: the developer's loop, under a minute."""
    install(session, "test", package=WORKING_COPY)
    session.run(
        *("pytest", "-n", "4", "--dist", "worksteal", "-m", "not slow"),
        *session.posargs,
    )


@nox.session
def cover(session: nox.Session) -> None:
    """Run the tests under coverage and show the lines and branches not reached."""
    install(session, "test", package=WORKING_COPY)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and spelling."""
    install(session, "lint")
    run_lint(session)


@nox.session
def layers(session: nox.Session) -> None:
    """Check the direction of imports."""
    install(session, "layers", package="-e .")
    run_layers(session)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types as the author (mypy, pyright) and as a user (--verifytypes)."""
    install(session, "type", "test", package=WORKING_COPY)
    run_mypy(session)
    run_pyright(session)


@nox.session
def ci(session: nox.Session) -> None:
    """Run lint, layers, typecheck, docs and the full tests in one environment.

    This is README's test command; pytest's closing line is its last output.
    """
    groups = "lint", "layers", "type", "docs", "test"
    install(session, *groups, package=WORKING_COPY)
    run_lint(session)
    run_layers(session)
    # Each of them has work for one core.
    side_by_side(
        partial(run_mypy, session),
        partial(run_pyright, session),
        partial(run_docs, session, "-q"),
        # Compiles all tests once: six workers that begin together would do it each.
        partial(session.run, "pytest", "--collect-only", "-qq", silent=True),
    )
    # Nox would add its own summary after pytest's; the exit code says it all.
    logging.getLogger("nox").setLevel(logging.CRITICAL)
    # One of them has the crowds, and mostly waits; the others wait for servers, leases
    # and processes for half of the time.
    session.run(
        *("pytest", "-n", "6", "--dist", "worksteal", SECOND_LOOKS), *session.posargs
    )


@nox.session
def sync_api(session: nox.Session) -> None:
    """Derive the synchronous API from the async one."""
    install(session, "lint", "test", package=WORKING_COPY)
    target = ROOT / PACKAGE / "sync" / "api.py"
    derived = session.run("python", "-m", "tests.sync.derive", silent=True)
    target.write_text(str(derived), "utf-8")
    session.run("ruff", "format", "-q", str(target))


@nox.session
def citations(session: nox.Session) -> None:
    """Take out each statement whose comment names a test, and run that test.

    `-- PART …`: of the paths of the modules, such as `runtime/cleanup`. All take hours.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.citations", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change the code in one place after the other: does a test of its area fail?

    `-- AREA [--every N] [--first N]` with core, runtime, locks, cas, redis, sets,
    fencing, recipes, sqlite, etcd or postgresql. Whole areas take hours.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def compat(session: nox.Session) -> None:
    """Run the lock tests of redis-py and aiorwlock against our classes of the same
    signatures: their source distributions are fetched for that.
    """
    install(session, "test", package=WORKING_COPY)
    session.install(*CONSTRAINTS, "pip")
    session.run("python", "-m", "tests.compat.theirs.run")


@nox.session
def bench(session: nox.Session) -> None:
    """Run all benchmarks; `-- redis …`, `cassandra`, `etcd` or `sql` only that suite.

    `-- page …` measures them beside their peers, and writes `docs/benchmarks.md`.
    `-- growth redis …` measures cost against number.
    Other arguments go to the suite of locks that need no server.
    """
    install(session, "bench", package=WORKING_COPY)
    if session.posargs[:1] == ["page"]:
        session.run("python", "-m", "benchmarks.page", *session.posargs[1:])
        return
    if session.posargs[:1] == ["growth"]:
        session.run("python", "-m", "benchmarks.growth", *session.posargs[1:])
        return
    servers = ("redis", "cassandra", "etcd", "sql")
    first, *rest = session.posargs or [""]
    if first not in servers:
        session.run("python", "-m", "benchmarks.local", *session.posargs)
    for server in servers:
        if first in {"", server}:
            session.run("python", "-m", f"benchmarks.{server}", *rest)


@nox.session
def demo(session: nox.Session) -> None:
    """Show the locks at work in the terminal."""
    session.install(*CONSTRAINTS, "-e", ".[cli]")
    session.run("rwlock", "demo", *session.posargs)


@nox.session
def spec(session: nox.Session) -> None:
    """Check the models in spec/ (needs Java)."""
    session.run("python", "spec/run.py", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Let client processes use a store for hours while everything fails, as root.

    `-- STORE HOURS [--seed N] [--operations N] [--faults N]` with redis, postgresql,
    mariadb, cassandra, sqlite and others; writes docs/evidence and its page. With
    `--plant NAME` the clients break one promise, and the run has to find that.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.soak", *session.posargs)
    session.run("python", "-m", "tests.soak.page")


@nox.session
def kills_and_cancels(session: nox.Session) -> None:
    """Kill holders on SQLite again and again, then cancel on Redis; takes minutes.

    `-- KILLS CANCELS` for other numbers than 200, and 10000 on each loop.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.faults.kills", *session.posargs[:1])
    session.run("python", "-m", "tests.faults.redis_cancels", *session.posargs[1:])


@nox.session
def pushed_grants(session: nox.Session) -> None:
    """Hand one lock over while messages and processes fail.

    `-- redis [GRANTS]`, `-- postgresql`: on a server of its own; or a URL.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.faults.pushed_grants", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Run the library under virtual time with seeded faults.

    `-- COUNT` seeds of each kind of store; `-- --seed N [--kind tables]`: the story of
    one.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run the readers of foreign bytes under atheris, each for so many seconds.

    `-- SECONDS TARGET …` for others than a minute of each. What breaks a promise is
    kept in tests/fuzz/corpus, which the tests replay.
    """
    install(session, "fuzz", package=WORKING_COPY)
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session
def traces(session: nox.Session) -> None:
    """Record a store under load, and replay each command by the core (TLC needs Java).

    `-- STORE [COMMANDS]`: redis, sqlite, postgresql, cassandra or etcd, on a server of
    its own; 10,000 commands unless said otherwise.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.traces", *session.posargs)


@nox.session
def failovers(session: nox.Session) -> None:
    """Measure what failovers cost, three minutes a topology: `-- TOPOLOGY …`.

    `redis-sentinel`, `postgresql-synchronous`, `etcd` and others, see `-- --help`;
    writes docs/evidence/failovers, the picture and table of docs/howto/failover.md.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.failovers", *session.posargs)
    session.run("python", "-m", "docs.pictures.failovers")


@nox.session
def planned_failovers(session: nox.Session) -> None:
    """Plan failovers of a Redis primary under load; takes twenty minutes.

    `-- FAILOVERS LEASE …` for others than 20 with each lease of 1, 2, 3 and 6 s;
    `--client` for a client of redis-py, `--untold` for Sentinels that refuse to tell of
    a failover, `--trio`.
    """
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.faults.failovers", *session.posargs)


@nox.session
def histories(session: nox.Session) -> None:
    """Run the random histories with twenty times the examples; takes ten minutes.

    `-- TIMES` for another factor.
    """
    install(session, "test", package=WORKING_COPY)
    (times,) = session.posargs or ["20"]
    tests = ROOT.glob("tests/**/test_*.py")
    chosen = [str(path) for path in tests if "import many" in path.read_text()]
    session.run("pytest", "-n", "2", *chosen, env={"HISTORIES": times})


@nox.session
def long(session: nox.Session) -> None:
    """Run the tests that the full tests leave out, as they take long: half an hour."""
    install(session, "test", package=WORKING_COPY)
    session.run(
        *("pytest", "-n", "4", "--dist", "worksteal", "-m", "long"),
        *session.posargs,
        env={"LONG": "1"},
    )


@nox.session
def paxos_v1(session: nox.Session) -> None:
    """Test what depends on Cassandra's transactions with Paxos v1; takes ten minutes.

    The nodes of all other sessions use v2.
    """
    install(session, "test", package=WORKING_COPY)
    session.run(
        *("pytest", "-n", "2", "tests/conformance/test_cassandra.py"),
        *("tests/backends/cassandra", "tests/faults/test_cassandra.py"),
        *session.posargs,
        env={"CASSANDRA_PAXOS": "v1", "LONG": "1"},
    )


# What the fixtures start instead of the machine's servers: a Debian suite and a package
# of it for each kind. What is of one round shares no test, so none waits for another.
ROUNDS_OF_TODAY = {
    "redis": "redis=sid/redis-server",
    "valkey": "redis=sid/valkey-server",
    "valkey-8": "redis=trixie/valkey-server",
    "databases": (
        "postgresql=sid/postgresql-18 mariadb=trixie/mariadb-server"
        " mysql=sid/mysql-server-core java=trixie/openjdk-21-jre-headless"
    ),
    "postgresql-17": "postgresql=trixie/postgresql-17",
    "etcd": "etcd=trixie/etcd-server",
    "etcd-3.4": "etcd=bookworm/etcd-server",
}


@nox.session
def servers_of_today(session: nox.Session) -> None:
    """Run the tests of servers on newer ones than the machine's; takes two hours.

    `-- valkey …` for some of the rounds; other arguments go to pytest.
    """
    install(session, "test", package=WORKING_COPY)
    wanted = [word for word in session.posargs if word in ROUNDS_OF_TODAY]
    others = [word for word in session.posargs if word not in ROUNDS_OF_TODAY]
    for name in wanted or ROUNDS_OF_TODAY:
        # MySQL has no other session: its conformance suite is to be whole here.
        turns = {"ALL_TURNS": "1"} if name == "databases" else {}
        session.run(
            *("pytest", "-n", "3", "--dist", "worksteal", SECOND_LOOKS, *others),
            env={"SERVERS": ROUNDS_OF_TODAY[name], "LONG": "1", **turns},
        )


@nox.session
def all_turns(session: nox.Session) -> None:
    """Run the cases that stores take in turn on all stores; takes half an hour.

    `-- tests/conformance/test_oracle*.py` for some of them.
    """
    install(session, "test", package=WORKING_COPY)
    wanted = session.posargs or ["tests/conformance"]
    session.run(
        *("pytest", "-n", "3", "--dist", "worksteal", *wanted),
        env={"ALL_TURNS": "1", "LONG": "1"},
    )


@nox.session
def mirror(session: nox.Session) -> None:
    """Run Oracle's conformance suite on a second double of it; takes half an hour."""
    install(session, "test", package=WORKING_COPY)
    session.run(
        *("pytest", "-n", "2", "--dist", "worksteal", "tests/conformance/mirror.py"),
        *session.posargs,
    )


@nox.session
def differential(session: nox.Session) -> None:
    """Compare Redis scripts and core by a million random commands; half an hour.

    `-- COMMANDS SEED` for other numbers.
    """
    install(session, "test", package=WORKING_COPY)
    given = session.posargs or ["1000000"]
    session.run("python", "-m", "tests.backends.redis.differential", *given)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error, a broken link, too."""
    install(session, "docs", package=WORKING_COPY)
    run_docs(session, *session.posargs)


# The loop on other versions: of Python, or of what the package depends on.
FAST = ("pytest", "-n", "2", "--dist", "worksteal", "-m", "not slow")


@nox.session
def build(session: nox.Session) -> None:
    """Build sdist and wheel of the last commit twice, and try the wheel.

    Both builds have to be the same bytes. The wheel is installed with each extra. The
    files are left in dist/.
    """
    install(session, "release", "test")
    build_and_try(session)


@nox.session
def licences(session: nox.Session) -> None:
    """Check the licences of all that the extras install."""
    install(session, "test", package=WORKING_COPY)
    session.run("python", "-m", "tests.release.licences")


@nox.session
def audit(session: nox.Session) -> None:
    """Ask PyPI for known vulnerabilities of the pins, and of what each extra installs.

    What could not be asked is an error, too.
    """
    install(session, "release")
    run_audit(session)


@nox.session(python=VERSIONS[0])
def least(session: nox.Session) -> None:
    """Run the fast tests on the lowest versions that pyproject.toml allows."""
    session.install(*CONSTRAINTS, "packaging", "uv")
    lowest = Path(session.create_tmp(), "lowest.txt")
    session.run("python", "-m", "tests.release.lowest", str(lowest))
    install_unpinned(session, "-c", str(lowest))
    session.run(*FAST, *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the fast tests on the newest versions of everything, without constraints."""
    install_unpinned(session, "--upgrade")
    session.run(*FAST, *session.posargs)


@nox.session
def pythons(session: nox.Session) -> None:
    """Run the fast tests on each supported Python; fetch those that are missing.

    `-- 3.14 3.15` for some, or for others than the supported; see
    `tests/release/pythons.py`.
    """
    install(session, "test", "build", package=WORKING_COPY)
    for version in session.posargs or VERSIONS:
        run_on(session, version)


@nox.session
def release(session: nox.Session) -> None:
    """Check all that a release needs, and stop before publishing.

    `-- --no-audit` on a machine that cannot reach PyPI's vulnerability service.
    """
    audited = "--no-audit" not in session.posargs
    install(session, "release", "test", package=WORKING_COPY)
    session.run("pytest", "-q", "tests/release", "tests/test_project.py")
    if audited:
        run_audit(session)
    build_and_try(session)
    session.run("python", "-m", "tests.release.licences")
    for name in ("least", "newest", "pythons"):
        session.run("nox", "-s", name)
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    session.log(NEXT_STEPS.format(version=project["version"]))
    if not audited:
        session.warn("not audited: run `nox -s audit` where PyPI is reached")


NEXT_STEPS = """
dist/ has {version}, checked and not published. What is left:
  1. CHANGELOG.md: the version and the date instead of [Unreleased]; commit.
  2. git tag -s v{version} -m v{version} && git push origin v{version}
     The workflow `release` builds the tag anew and waits for an approval.
  3. Compare its files with dist/ (sha256sum dist/*), then approve.
  4. Add dist/*.cdx.json, the SBOM, to the release.
  5. The next version in pyproject.toml and __init__.py, and a new [Unreleased].
"""


@nox.session
def pins(session: nox.Session) -> None:
    """Write constraints.txt anew; `-- --upgrade` takes the newest versions."""
    session.install("uv")
    session.run(
        *("uv", "pip", "compile", "-q", "pyproject.toml", "-o", "constraints.txt"),
        *("--universal", "--python-version", VERSIONS[0], "--fork-strategy", "fewest"),
        *("--all-extras", "--group", "dev", "--no-header", "--no-annotate"),
        # No index host and no folder of this machine may get into the file.
        *("--no-emit-index-url", "--no-emit-find-links", *session.posargs),
    )
    file = ROOT / "constraints.txt"
    made = (
        "# Made by `nox -s pins` (uv pip compile --universal, Python 3.11 and later).\n"
    )
    file.write_text(made + file.read_text(encoding="utf-8"), encoding="utf-8")


# ------------------------------------------------------- steps of sessions


def side_by_side(*steps: Callable[[], object]) -> None:
    """Run steps at the same time; if one fails, raise its error when all have ended."""
    with ThreadPoolExecutor(len(steps)) as pool:
        running = [pool.submit(step) for step in steps]
    for step in running:
        step.result()


def run_lint(session: nox.Session) -> None:
    """Check style, format and spelling."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")


def run_layers(session: nox.Session) -> None:
    """Check the direction of imports."""
    session.run("lint-imports", "--no-cache")


def run_mypy(session: nox.Session) -> None:
    """Check types as the author."""
    session.run("mypy")


def run_pyright(session: nox.Session) -> None:
    """Check types as the author, and of what the package shows to its users."""
    session.run("pyright")
    session.run("pyright", "--verifytypes", PACKAGE, "--ignoreexternal")


def run_docs(session: nox.Session, *options: str) -> None:
    """Build all pages anew: Sphinx does not warn of a page that it built before.

    Then check their links, and that the site's search finds what people look for.
    """
    shutil.rmtree(ROOT / "docs" / "_build", ignore_errors=True)
    session.run(
        *("sphinx-build", "-W", "--keep-going", "-b", "html", *options),
        *("docs", "docs/_build/html"),
    )
    session.run("python", "docs/check_site.py", "docs/_build/html")


def install_unpinned(session: nox.Session, *options: str) -> None:
    """Install the tests and all extras without `constraints.txt`."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    wanted = nox.project.dependency_groups(project, "test")
    session.install(*options, *WORKING_COPY.split(), *wanted)


def build_and_try(session: nox.Session) -> None:
    """Build into dist/, try the wheel in empty environments, and write an SBOM."""
    dist = ROOT / "dist"
    session.run("python", "-m", "tests.release.artifacts", str(dist))
    built = [str(path) for path in sorted(dist.iterdir())]
    session.run("twine", "check", "--strict", *built)
    (wheel,) = dist.glob("*.whl")
    folder = Path(session.create_tmp(), "installed")
    session.run("python", "-m", "tests.release.installed", str(wheel), str(folder))
    session.run(
        *("cyclonedx-py", "environment", str(folder / "all" / "bin" / "python")),
        *("--pyproject", "pyproject.toml", "--output-reproducible"),
        *("--output-format", "JSON", "-o", f"{wheel.with_suffix('.cdx.json')}"),
    )


def run_audit(session: nox.Session) -> None:
    """Audit the pins, and the newest versions that each extra would install."""
    folder = Path(session.create_tmp())
    session.run(*AUDIT, "-r", "constraints.txt")
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    for extra in project["optional-dependencies"]:
        pins = folder / f"{extra}.txt"
        session.run(
            *("uv", "pip", "compile", "-q", "pyproject.toml", "--extra", extra),
            *("--no-header", "--no-annotate", "-o", str(pins)),
            *("--no-emit-index-url", "--no-emit-find-links"),
        )
        session.run(*AUDIT, "-r", str(pins))


# Strict: a package that the service does not know, or a service that is not reached,
# is an error. Otherwise pip-audit would report no vulnerability.
AUDIT = (
    "pip-audit",
    "--strict",
    "--no-deps",
    "--disable-pip",
    "--progress-spinner=off",
)


def run_on(session: nox.Session, version: str) -> None:
    """Run the fast tests on one version of Python, in an environment of its own."""
    python = environment_of(session, version)
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    wanted = nox.project.dependency_groups(project, "test")
    session.run(
        *("uv", "pip", "install", "-q", "--python", python, *CONSTRAINTS),
        *(*WORKING_COPY.split(), *wanted),
    )
    session.run(python, "-VV", external=True)
    session.run(python, "-m", *FAST, external=True)


def environment_of(session: nox.Session, version: str) -> str:
    """Make an environment with a version of Python; return its interpreter."""
    found = session.run("python", "-m", "tests.release.pythons", version, silent=True)
    path = Path(session.create_tmp(), version)
    interpreter = str(found).strip().splitlines()[-1]
    session.run("uv", "venv", "-q", "--clear", "--python", interpreter, str(path))
    return str(path / "bin" / "python")
