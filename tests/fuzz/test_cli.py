"""`rwlock` in this process: what it is given, and what it shows of others' names."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.cli.exit_codes import REFUSED, UNAVAILABLE, USAGE
from aiorwlock_remote.cli.group import rwlock
from aiorwlock_remote.cli.store_metrics import StoreCollector, StoreLister
from tests.cli.fix_cli import environment, here
from tests.fuzz.hostile import HOSTILE

COMMANDS = ("ls", "show", "stale", "break", "doctor", "schema", "no-such")
"""Those that look, or end one holder, and then end."""
DOCUMENTED = {0, REFUSED, USAGE, UNAVAILABLE}
WORDS = (
    *("order", "order/42", "order/", "/42", "%2F/", "-", "--", "-h", "--help", "-y"),
    *("0", "-1", "1e999", "nan", "9" * 5_000, "0x1", "١٢", "", " ", "\0", "\ud800"),
    *("x://", "://", "file://", "sqlite:///", "sqlite:////nowhere/x.db", "oracle"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store in which every hostile text is a type, an id and a reason."""
    folder = tmp_path_factory.mktemp("store")
    found = f"sqlite:///{folder}/locks.db"

    async def hold() -> None:
        async with connect(found) as locks:
            for text in HOSTILE.values():
                reason = text[:900].replace("\0", "")
                for name in ((text, "42"), ("order", text)):
                    held = await locks.mutex(*name).acquire(lease=None, reason=reason)
                    held.detach()

    asyncio.run(hold())
    return found


def options() -> tuple[str, ...]:
    context = click.Context(rwlock)
    known = (rwlock.get_command(context, name) for name in COMMANDS)
    return tuple(
        option
        for command in known
        if command is not None
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    )


def one_of_ours(line: str) -> bool:
    return line.isprintable()


@pytest.mark.parametrize("command", ["ls", "stale"])
def test_no_name_steers_the_terminal(url: str, command: str) -> None:
    ended = here([command], environment(RWLOCK_URL=url))
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) >= len(HOSTILE)
    assert [one for one in ended.stdout.split("\n") if not one_of_ours(one)] == []


def test_json_says_each_name_whole(url: str) -> None:
    found = json.loads(here(["ls", "--json"], environment(RWLOCK_URL=url)).stdout)
    ids = {one["id"] for one in found if one["type"] == "order"}
    assert {text for text in HOSTILE.values() if len(text) < 60} <= ids
    reasons = {one["holders"][0]["reason"] for one in found}
    assert HOSTILE["page"] in reasons


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_listed_lock_can_be_shown_and_broken_alone(url: str, kind: str) -> None:
    text = HOSTILE[kind]
    if len(text) > 60 or "\0" in text:
        return  # cut where it is stored, or no argument of a process
    env = environment(RWLOCK_URL=url)
    label = f"order/{text}"
    shown = here(["show", "--json", "--", label], env)
    assert shown.returncode == 0
    (holder,) = json.loads(shown.stdout)["holders"]
    printed = here(["show", "--", label], env).stdout
    assert all(one_of_ours(one) for one in printed.split("\n"))
    if text.isprintable():  # the command that is printed is for a shell
        (line,) = (one for one in printed.split("\n") if "rwlock break" in one)
        assert shlex.split(line)[-1] == label
    before = len(json.loads(here(["ls", "--json"], env).stdout))
    asked = ("--holder", holder["holder"], "--fence", str(holder["fence"]), "-y")
    ended = here(["break", *asked, "--reason", text, "--", label], env)
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(here(["ls", "--json"], env).stdout)) == before - 1


def test_labels_of_metrics_are_escaped(url: str) -> None:
    said: list[str] = []

    async def figures() -> str:
        async with connect(url) as locks:

            async def opened() -> Locks:
                return locks

            found = await StoreLister(opened, 60.0, said.append).list_store()
        registry = CollectorRegistry()
        registry.register(StoreCollector(lambda: found, 60.0))
        return generate_latest(registry).decode()

    exported = asyncio.run(figures())
    families = list(text_string_to_metric_families(exported))
    labels = {s.labels.get("type") for family in families for s in family.samples}
    assert {HOSTILE["label"], HOSTILE["resp"], HOSTILE["page"]} <= labels


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_arguments_end_with_a_documented_code(
    url: str, data: st.DataObject
) -> None:
    """And with one line on stderr, never a traceback."""
    word = (
        st.sampled_from((*WORDS, *HOSTILE.values()))
        | st.sampled_from(options())
        | st.text(max_size=12)
    )
    command = data.draw(st.sampled_from(COMMANDS) | word)
    words = [command, *data.draw(st.lists(word, max_size=6))]
    assume(command not in {"run", "watch", "board", "exporter", "demo", "bench"})
    ended = here(words, environment(RWLOCK_URL=url))
    assert ended.returncode in DOCUMENTED
    if ended.returncode in {USAGE, UNAVAILABLE}:
        (line, rest) = ended.stderr.split("\n", 1)
        assert line.startswith("rwlock: ")
        assert line.isprintable()
        assert rest == ""


def test_the_store_of_the_fuzzer_is_where_it_was(url: str) -> None:
    assert Path(url.removeprefix("sqlite:///")).exists()
