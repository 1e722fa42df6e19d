from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.testing import history
from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Died,
    Event,
    Failed,
    Granted,
    Lost,
    Refused,
    Released,
    Releasing,
    Unknown,
    decode_event,
    encode_event,
    now,
)

ASK = Ask("w1", "catalog,7", "0123456789ab", 5, "R")


def values() -> st.SearchStrategy[Event]:
    integers = st.integers(-(2**63), 2**63 - 1)
    maybe = st.none() | integers
    head = (st.text(), st.text(), st.text(), integers)
    mode = st.sampled_from(get_args(history.EventMode))
    return st.one_of(
        st.builds(Ask, *head, mode),
        st.builds(Granted, *head, integers, mode, integers, maybe),
        *(st.builds(kind, *head, integers) for kind in (Refused, Failed, Unknown)),
        st.builds(Access, *head, mode, integers, integers, maybe, maybe),
        st.builds(Releasing, *head, maybe),
        st.builds(Released, *head, integers, st.none() | st.booleans()),
        st.builds(Lost, *head, st.text()),
        st.builds(Died, st.text(), integers),
    )


@given(values())
def test_a_line_gives_back_its_event(event: Event) -> None:
    line = encode_event(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


@given(values(), st.data())
def test_no_beginning_of_a_line_is_an_event(event: Event, data: st.DataObject) -> None:
    line = encode_event(event)
    torn = line[: data.draw(st.integers(0, len(line) - 2))]
    with pytest.raises(ValueError, match=r"."):
        decode_event(torn)


def test_the_keys_are_those_the_go_judge_reads() -> None:
    line = encode_event(Granted("w1", "catalog,7", "0123456789ab", 9, 5, "W", 3, None))
    assert json.loads(line) == {
        "e": "granted",
        "p": "w1",
        "r": "catalog,7",
        "h": "0123456789ab",
        "t": 9,
        "a": 5,
        "m": "W",
        "f": 3,
        "u": None,
    }


def test_keys_of_a_later_version_are_ignored() -> None:
    record = json.loads(encode_event(ASK)) | {"new": 1}
    assert decode_event(json.dumps(record).encode()) == ASK


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("t", None), ("t", "5"), ("t", 5.0), ("t", True), ("m", "X"), ("h", 7), ("e", [])],
)
def test_a_field_of_another_type_is_no_event(field: str, wrong: object) -> None:
    record = json.loads(encode_event(ASK)) | {field: wrong}
    with pytest.raises(ValueError, match=r"cannot be|no known event"):
        decode_event(json.dumps(record).encode())


@pytest.mark.parametrize("line", ["[]", "7", "{}", '{"e":"ask"}', '{"e":"born"}'])
def test_other_json_is_no_event(line: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be|no known event"):
        decode_event(line.encode())


def test_events_are_values() -> None:
    assert replace(ASK) == ASK
    with pytest.raises(FrozenInstanceError):
        ASK.at = 6  # type: ignore[misc]


# --------------------------------------------------------------------- clock


def test_the_clock_is_one_for_all_processes() -> None:
    code = "from aiorwlock_remote.testing.history import now; print(now())"
    before = now()
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert before < int(ran.stdout) < now()


def test_without_a_boottime_clock_the_monotonic_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "_BOOTTIME", None)
    monkeypatch.setattr("time.monotonic_ns", lambda: 42)
    assert now() == 42
