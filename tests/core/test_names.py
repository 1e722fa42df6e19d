"""Names: injective, plain ones as published, and back again."""

from __future__ import annotations

from copy import copy
from hashlib import sha256
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorwlock_remote.core.names import (
    MAX_NAME_BYTES,
    Resource,
    ResourceId,
    cached_resource,
    check_prefix,
    decode,
    encode,
    is_cut,
    resource,
    resource_from_key,
    resource_from_row,
    resource_under_prefix,
    semaphore,
    split_label,
)
from aiorwlock_remote.errors import ConfigurationError

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=260)
TRICKY = st.text("%~,/{}a0é-", min_size=1, max_size=230)
NAMES = TEXT | TRICKY
IDS = st.integers() | st.uuids() | NAMES


def test_plain_names_come_out_as_published() -> None:
    """What the published layouts show is what stands in the store."""
    plain = resource("foobar", 123)
    assert plain.key == "foobar,123"
    assert plain.row == ("foobar", 123)
    assert plain.label == "foobar/123"
    assert resource("invoice:eu.paid_1-x", "ä b").key == "invoice:eu.paid_1-x,ä b"
    uuid = UUID(int=7)
    assert resource("t", uuid) == resource("t", str(uuid))


def test_an_id_is_counted_by_its_text() -> None:
    """42 and "42" are one resource; "042" is another."""
    assert resource("t", 42) == resource("t", "42")
    assert resource("t", "042") != resource("t", 42)
    assert resource("t", "T") != resource("t", "t")


@given(st.tuples(NAMES, IDS), st.tuples(NAMES, IDS))
@example(("a", "b,c"), ("a,b", "c"))
@example(("a%2C", "b"), ("a,", "b"))
def test_names_are_injective(
    one: tuple[str, ResourceId], two: tuple[str, ResourceId]
) -> None:
    """Two resources share a key or a row only if they are one."""
    same = (one[0], str(one[1])) == (two[0], str(two[1]))
    first, second = resource(*one), resource(*two)
    assert (first.key == second.key) is same
    assert (first.row == second.row) is same


@given(NAMES, IDS)
def test_names_are_read_back(kind: str, name: ResourceId) -> None:
    """From a key, from a row; and shown as the user wrote them."""
    it = resource(kind, name)
    assert resource_from_key(it.key) == it
    assert resource_from_row(*it.row) == it
    for text, stored in ((kind, it.type), (str(name), it.id)):
        assert len(stored.encode()) <= MAX_NAME_BYTES
        assert not set(stored) & set(",/{}")
        assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in stored)
        if "%~" not in stored:
            assert decode(stored) == text


@given(NAMES, IDS)
@example("test/order", 42)
@example("test", "order/42")
@example("50%2F", 1)
def test_a_label_names_its_resource(kind: str, name: ResourceId) -> None:
    """A label names its resource, unless the name was cut."""
    it = resource(kind, name)
    if "%~" not in it.key:
        assert split_label(it.label) == (kind, str(name))


def test_slashes_as_they_are_shown() -> None:
    """Slashes of an id are plain in a label; those of a type are not."""
    assert resource("file", "/etc/hosts").label == "file//etc/hosts"
    assert resource("test/order", 42).label == "test%2Forder/42"
    assert split_label("50%/1") == ("50%", "1"), "typed by hand"
    assert split_label("order") == ("order", "")


@pytest.mark.parametrize(
    ("number", "row"),
    [
        (2**31 - 1, ("t", 2**31 - 1)),
        (-(2**31), ("t", -(2**31))),
        (2**31, ("t,2147483648", 0)),
        ("007", ("t,007", 0)),
        ("-0", ("t,-0", 0)),
        ("٣", ("t,٣", 0)),
        ("x", ("t,x", 0)),
    ],
)
def test_rows(number: int | str, row: tuple[str, int]) -> None:
    """Small integers go into the integer column, other ids into the name."""
    assert resource("t", number).row == row


def test_long_names_are_cut() -> None:
    """A cut name has a readable beginning, then the hash of the whole."""
    text = "Ü" * 150
    stored = encode(text)
    assert stored == "Ü" * 50 + "%~" + sha256(text.encode()).hexdigest()
    assert encode("a" * MAX_NAME_BYTES) == "a" * MAX_NAME_BYTES
    assert encode(text) != encode(text + "x")
    assert decode(stored) == "Ü" * 50 + "…" + sha256(text.encode()).hexdigest()[:8]
    assert is_cut(decode(stored))
    assert not is_cut(text)
    assert "%~" in encode(stored + "a" * 100), "a stored name is a name like others"


@given(st.text())
@example("50%off")
@example("%")
@example("a%2")
@example("%~")
def test_any_foreign_name_can_be_shown(text: str) -> None:
    """A listing must not fail on what another program wrote."""
    assert isinstance(Resource(text, text).label, str)


def test_a_foreign_percent_sign_stays() -> None:
    """A percent sign that we did not write is shown as it is."""
    assert decode("50%off") == "50%off"
    assert decode("a%2") == "a%2"


BAD: list[tuple[object, object]] = [
    ("", 1),
    ("t", ""),
    (5, 1),
    ("t", 1.5),
    ("t", True),
    ("t", None),
    (b"t", 1),
    ("\ud800", 1),
    ("t", "\udfff"),
    ("t", 10**5000),
    ("t", [1]),
    ([], 1),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_an_invalid_name_is_refused(bad: tuple[str, ResourceId]) -> None:
    """A bad name raises ``ConfigurationError`` before anything is sent."""
    with pytest.raises(ConfigurationError):
        resource(*bad)


@pytest.mark.parametrize("alike", [True, 1.0])
def test_a_value_equal_to_a_cached_name_is_refused(alike: ResourceId) -> None:
    """True is refused although the equal 1 is in the cache."""
    assert cached_resource("t", 1) == cached_resource("t", "1")
    with pytest.raises(ConfigurationError):
        cached_resource("t", alike)


prefixes = st.sampled_from(["", "app:", "my app/", "ä.", "/" * 33, "p" * 100])
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=250)


@example("p" * 100, "\U0001cffc" * 27, "0")
@given(prefixes, texts, texts)
def test_a_prefix_is_the_beginning_of_the_type(
    prefix: str, kind: str, name: str
) -> None:
    """A resource found in a store is shown without the prefix, cut or not."""
    found = resource(kind, name, prefix)
    whole = resource(prefix + kind, name)
    assert found == whole
    assert hash(found) == hash(whole)
    shown = resource_under_prefix(whole, prefix)
    assert shown is not None
    assert shown.label == found.label
    assert prefix + found.shown[0] == whole.shown[0]
    assert copy(found).label == found.label
    if "%~" not in whole.type:  # it was not cut
        assert found.shown == resource(kind, name).shown


@given(texts)
def test_resources_without_a_name_under_a_prefix(kind: str) -> None:
    found = resource(kind, 1)
    ours = kind.startswith("a/") and kind != "a/"
    assert (resource_under_prefix(found, "a/") is not None) == ours


@pytest.mark.parametrize("prefix", ["", "app:", "my app/", "ä.", "/" * 33])
def test_prefixes(prefix: str) -> None:
    """Good prefixes are kept as they are."""
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix",
    [*("{", "a}", "a,b", "100%", "\n", "\x7f", None, 5, "\ud800"), "p" * 101, "/" * 34],
)
def test_bad_prefixes(prefix: object) -> None:
    """Bad prefixes are refused.

    Braces would move the cluster slot, other signs would be taken for our encoding.
    """
    with pytest.raises(ConfigurationError):
        check_prefix(prefix)


def test_a_prefix_that_was_not_set() -> None:
    """``prefix=os.environ.get(…)`` gives None, and the error says so."""
    with pytest.raises(ConfigurationError, match="prefix must be str, not NoneType"):
        check_prefix(None)


@pytest.mark.parametrize("prefix", ["", "app/"])
@pytest.mark.parametrize("kind", ["api", "a%b,{c}", "ä" * 93, "x" * 195, "y" * 500])
def test_a_semaphore_is_another_resource(kind: str, prefix: str) -> None:
    """It is shown by the same name, and read back from each store's key."""
    one = semaphore(kind, "stripe", prefix)
    assert one.is_semaphore
    assert one != resource(kind, "stripe", prefix)
    assert not resource(kind, "stripe", prefix).is_semaphore
    assert len(one.type.encode()) <= MAX_NAME_BYTES
    for read in (resource_from_key(one.key), resource_from_row(*one.row)):
        found = resource_under_prefix(read, prefix)
        assert found == one
        assert found.shown == one.shown
        assert found.is_semaphore
    if len(kind) < 20:
        assert one.shown == (kind, "stripe")
    assert not resource_under_prefix(one, "other")


def test_no_lock_is_called_like_a_semaphore() -> None:
    assert resource("api%semaphore", 1).type == "api%25semaphore"
    assert resource("api%semaphore", 1) != semaphore("api", 1)
    assert semaphore("api", 1).type == "api%semaphore"
