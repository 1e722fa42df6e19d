"""The events that docs/howto/logging.md lists are those of the package."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.docs.package_events import loggers_of_events, words_of_modules
from tests.docs.test_tables import table

EVENT = re.compile(r"`([a-z]\w*_?\w+)`")
FIELDS = re.compile(r" \(`[^)]*\)")
OPTIONS = {"slow_wait"}


def documented() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for loggers, events in table("howto/logging.md", "logger"):
        bare = FIELDS.sub("", events)
        for logger in re.findall(r"`([\w.]+)`", loggers):
            found[logger] |= set(EVENT.findall(bare)) - OPTIONS
    return found


def test_every_event_of_the_package_is_listed_under_its_logger() -> None:
    listed = documented()
    missing = {
        (logger, event)
        for event, loggers in loggers_of_events().items()
        for logger in loggers
        if event not in listed.get(logger, set())
    }
    assert missing == set()


def test_every_listed_event_stands_in_a_module_of_its_logger() -> None:
    every = set().union(*words_of_modules().values())
    written = {
        event for event in set().union(*documented().values()) if event not in every
    }
    assert written == set()


def test_the_scan_of_the_package_finds_events_of_each_kind() -> None:
    found = loggers_of_events()
    assert len(found) > 50
    assert found["redis_reconnected"] == {"aiorwlock_remote.redis"}
    assert found["owner_gone"] == {"aiorwlock_remote.keeper"}
    assert found["row_lock_uncertain"] == {"aiorwlock_remote.row_lock"}
    assert found["wake_channel_lost"] == {"aiorwlock_remote.store"}
