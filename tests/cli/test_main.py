"""What every command has in common: help, bad input, stores that cannot be used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from aiorwlock_remote import registry
from aiorwlock_remote.cli.options import SECONDS, Utf8Text
from aiorwlock_remote.core.text import plain
from tests.cli.fix_cli import ROOT, RWLOCK, Store, environment, here

COMMANDS = ["demo", "run", "ls", "watch", "show", "stale", "break", "bench"]


def test_help_names_the_commands_and_the_exit_codes(store: Store) -> None:
    done = store.rwlock("--help")
    assert done.returncode == 0
    for word in (*COMMANDS, "69", "75", "76", "126", "127", "128+n"):
        assert word in done.stdout
    assert store.rwlock().stdout == done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_names_the_stores(store: Store) -> None:
    """All that processes can share, under their first names."""
    output = store.rwlock("--help").stdout
    others = {"memory", "mysql", "rediss+cluster", "rediss+sentinel"}
    others |= {name for name in registry._BUILT_IN if name.startswith("valkey")}
    for scheme in registry._BUILT_IN.keys() - others:
        assert f"{scheme}://" in output
    assert "--url" in output
    assert "RWLOCK_URL" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(store: Store, command: str) -> None:
    done = store.rwlock(command, "--help")
    assert done.returncode == 0
    assert "--url" in done.stdout
    assert "RWLOCK_URL" in done.stdout
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("20s", 20), ("15m", 900), ("6h", 21600), ("1d", 86400)],
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    assert SECONDS.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "d", "1w", "1 day", "0x1s", "--"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a number of seconds, or has a unit"):
        SECONDS.convert(text, None, None)


@pytest.mark.parametrize("words", [[], ["run"], ["schema"]], ids=" ".join)
def test_help_by_a_letter(store: Store, words: list[str]) -> None:
    assert store.rwlock(*words, "-h").stdout == store.rwlock(*words, "--help").stdout


def test_bad_usage_says_where_to_look(store: Store) -> None:
    assert store.rwlock("nonsense").stderr == (
        "rwlock: No such command 'nonsense'; see rwlock --help\n"
    )
    assert store.rwlock("--", "--").stderr == (
        "rwlock: No such command '--'; see rwlock --help\n"
    )
    assert store.rwlock("statle").stderr == (
        "rwlock: No such command 'statle' (did you mean stale?); see rwlock --help\n"
    )


def completed(words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What a shell is offered for the last of these words."""
    return subprocess.run(
        [sys.executable, "-c", "from aiorwlock_remote.cli.main import main; main()"],
        cwd=ROOT,
        env=environment(**env)
        | {
            "_RWLOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_completion() -> None:
    """As click does it, for bash, zsh and fish."""
    assert completed("rwlock st").stdout == "plain,stale\n"


@pytest.mark.parametrize("url", ["", "sqlite:///no-such-file.db", "gopher://x"])
def test_completion_of_names(store: Store, url: str) -> None:
    """What is held or waited for; nothing, and no error, if the store cannot say."""
    store.leave_behind("order", "42", "x")
    store.leave_behind("job", "1", "x")
    done = completed("rwlock show or", RWLOCK_URL=url or store.url)
    assert done.stdout.strip() == ("" if url else "plain,order/42")
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["ls", "watch", "show", "stale"])
def test_json_is_documented(store: Store, command: str) -> None:
    """Every key that scripts are given."""
    store.leave_behind("order", "1", "x")
    seen = store.json("show", "order/1")
    documented = re.findall(r"\w+", store.rwlock(command, "--help").stdout)
    assert {*seen, *seen["holders"][0]} <= set(documented)


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["run", "order/42"],
        ["run", "order/42", "--"],
        ["run", "order", "true"],
        ["run", "/42", "true"],
        ["run", "--timeout", "soon", "order/42", "true"],
        ["run", "--timeout", "nan", "order/42", "true"],
        ["run", "--timeout", "-1", "order/42", "true"],
        ["run", "--lease", "0", "order/42", "true"],
        ["run", "--grace", "-1", "order/42", "true"],
        ["run", "--conflict-exit-code", "256", "order/42", "true"],
        ["run", "--url", "gopher://x", "order/42", "true"],
        ["run", "--url", "memory://", "order/42", "true"],
        ["run", "--url", "sqlite:///no/such/folder/x.db", "order/42", "true"],
        ["run", "--url", "sqlite:///x.db?colour=red", "order/42", "true"],
        ["ls", "--url", "sqlite:///no-such-file.db"],
        ["watch", "--url", "sqlite:///no-such-file.db"],
        ["watch", "--every", "0.1"],
        ["watch", "--every", "nan"],
        ["watch", ""],
        ["stale", "--older-than", "-1"],
        ["stale", "--older-than", "nan"],
        ["run", "--lease", "nan", "order/42", "true"],
        ["run", "--grace", "nan", "order/42", "true"],
        ["show"],
        ["break", "order/42", "--holder", "x", "--fence", "1"],
        ["break", "order/42", "--holder", "x", "--fence", "one", "--reason", "y"],
        ["break", "order/42", "--holder", "x", "--fence", "1", "--reason", " "],
        ["demo", "--processes", "2"],
        ["demo", "--seconds", "0"],
        ["demo", "--seconds", "nan"],
        ["demo", "--seconds", "inf"],
        ["demo", "--url", "memory://"],
        ["demo", "--loop", "curio"],
        ["bench", "--seconds", "0.5"],
        ["bench", "--seconds", "nan"],
        ["bench", "--seconds", "inf"],
        ["bench", "--tasks", "0"],
        ["bench", "--tasks", "1001"],
        ["bench", "--loop", "curio"],
        ["bench", "--url", "memory://"],
        ["bench", "--url", "sqlite:///no-such-file.db"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_2(store: Store, words: list[str]) -> None:
    store.leave_behind("other", "1", "x")  # the file is there
    if words[0] == "run":
        done = store.rwlock(*words)
    else:
        done = here(words, environment(RWLOCK_URL=store.url))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("rwlock: ")


def test_without_a_url() -> None:
    done = subprocess.run(
        [*RWLOCK, "ls"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--url" in done.stderr
    assert "RWLOCK_URL" in done.stderr


def test_a_file_that_is_no_store_is_69(store: Store, tmp_path: Path) -> None:
    Path(tmp_path, "locks.db").write_text("this is a text, not a database\n" * 100)
    done = store.rwlock("ls")
    assert done.returncode == 69
    assert store.rwlock("watch").stderr == done.stderr
    bench = store.rwlock("bench")
    assert (bench.returncode, bench.stderr) == (69, done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['click'] = sys.modules['rich'] = None;"
        "from aiorwlock_remote.cli.main import main; sys.exit(main(['ls']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'aiorwlock-remote[cli]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["ls"], 0),
        (["doctor"], 0),
        (["doctor", "--url", "file://{place}?sync=no"], 1),
    ],
    ids=["help", "ls", "doctor", "doctor-bad"],
)
def test_nobody_reads_what_it_prints(
    store: Store, tmp_path: Path, words: list[str], code: int
) -> None:
    """`rwlock doctor | head -1`: no failure, unless the examination found one."""
    store.leave_behind("order", "1", "x")
    place = tmp_path / "place"
    place.mkdir()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [*RWLOCK, *(word.format(place=place) for word in words)],
            env=environment(RWLOCK_URL=store.url),
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("words", [["stale"], ["--help"], ["show", "order/1"]])
def test_a_full_disk_is_an_error(store: Store, words: list[str]) -> None:
    """One line and exit code 1, also if Python buffers what is printed."""
    store.leave_behind("order", "1", "x")
    env = environment(RWLOCK_URL=store.url)
    env.pop("PYTHONUNBUFFERED", None)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            *([*RWLOCK, *words],),
            env=env,
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert re.fullmatch(r"rwlock: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("mode", ["0", "1"])
def test_a_name_is_utf_8_in_every_locale(store: Store, mode: str) -> None:
    """In C without Python's UTF-8 mode, arguments arrive as bytes without letters."""
    held = 'printf "%s " "$RWLOCK_RESOURCE"; exec "$@"'
    shown = [*RWLOCK, "show", "--json", "größe/é"]
    env = environment(
        RWLOCK_URL=store.url,
        RWLOCK_PREFIX="日",
        LC_ALL="C",
        PYTHONUTF8=mode,
        PYTHONCOERCECLOCALE="0",
    )
    words = ["run", "--reason", "é", "größe/é", "sh", "-c", held, "sh", *shown]
    done = subprocess.run(
        [*RWLOCK, *words], env=env, cwd=ROOT, capture_output=True, check=True
    )
    name, _, output = done.stdout.decode().partition(" ")
    assert name == "größe/é"
    (resource,) = json.loads(output) if output.startswith("[") else [json.loads(output)]
    assert (resource["type"], resource["id"]) == ("größe", "é")
    assert [holder["reason"] for holder in resource["holders"]] == ["é"]


def test_an_argument_that_is_not_utf_8_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user of Latin-1 types one byte for an é; scripts in UTF-8 give two."""
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1"))
    read = Utf8Text().convert
    assert read("\xe9", None, None) == "é"
    assert read("\xc3\xa9", None, None) == "é"


def test_names_cannot_steer_the_terminal() -> None:
    assert plain("größe 1\x1b[31m\n\u202e") == r"größe 1\x1b[31m\n\u202e"


def test_a_name_that_the_terminal_has_no_letters_for(store: Store) -> None:
    """Written by somebody else: it is no reason to show nothing."""
    store.leave_behind("日本", "x", "t")
    done = subprocess.run(
        [*RWLOCK, "show", "日本/x"],
        env=environment(RWLOCK_URL=store.url, PYTHONIOENCODING="latin-1"),
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert rb"\u65e5\u672c/x" in done.stdout


def test_a_fence_beyond_all_fences(store: Store) -> None:
    done = store.rwlock(
        *("break", "order/1", "--holder", "x", "--reason", "x"),
        *("--fence", "9" * 5000),
    )
    assert done.returncode == 2
    assert "neither a number nor -" in done.stderr


@pytest.mark.parametrize("command", ["ls", "stale"])
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_an_empty_place_is_not_taken_for_an_unused_store(
    tmp_path: Path, command: str, scheme: str
) -> None:
    """It may be the folder that a disk is to be mounted at."""
    place = tmp_path / "locks"
    if scheme == "file":
        place.mkdir()
    else:
        place.touch()
    done = here([command, "--url", f"{scheme}:///{place}"], environment())
    assert done.returncode == 2
    assert "is empty: no lock was ever taken there" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["locks"]
