"""Each reader of foreign bytes, with what was kept, and with variations of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
EXAMPLES = 60
"""Examples of a target in CI; `nox -s fuzz` runs millions."""
PIECES = (
    *(b'"', b",", b"[", b"{", b"}", b"]", b":", b"null", b"-1", b"1e999", b"\\ud800"),
    *(b"\0", b"\r\n", b"\xff", b"%00", b"%~", b"99999999999999999999"),
    *(b"*", b"$", b">"),
)


def files(name: str) -> list[Path]:
    return sorted((CORPUS / name).iterdir())


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_break_no_promise(name: str) -> None:
    """Inputs that broke a promise once, or reached what others do not."""
    assert files(name)
    for path in files(name):
        TARGETS[name](path.read_bytes())


def test_each_folder_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@st.composite
def varied(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """An input of the corpus with pieces cut out, doubled, and put in."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 16)))
        piece = draw(
            st.sampled_from(PIECES) | st.binary(max_size=8) | st.just(data[start:end])
        )
        data = data[:start] + piece + data[draw(st.sampled_from([start, end])) :]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_variations(name: str) -> None:
    seeds = [path.read_bytes() for path in files(name)]

    @settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
    @given(varied(seeds) | st.binary(max_size=64))
    def vary(data: bytes) -> None:
        TARGETS[name](data)

    vary()
