"""Store URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.core.url import Address, parse, with_prefix
from aiorwlock_remote.errors import ConfigurationError

SECRET = "hunter2"  # noqa: S105 - looked for where it must not be


def test_a_full_url() -> None:
    """Every part, unquoted."""
    url = "oracle://al%40x:p%2Fw@db.example:1521/my%20service?pool=5&mode="
    it = parse(url)
    assert (it.scheme, it.host, it.port) == ("oracle", "db.example", 1521)
    assert (it.username, it.password, it.path) == ("al@x", "p/w", "/my service")
    assert it.query == {"pool": "5", "mode": ""}


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("memory://", "", None, ""),
        ("memory://name", "name", None, ""),
        ("sqlite:///locks.db", "", None, "/locks.db"),
        ("redis://[::1]:6379/0", "::1", 6379, "/0"),
        ("redis+cluster://h1,h2:7000,h3", "h1,h2:7000,h3", None, ""),
        ("cassandra://u:p@h1,h2:9042/keys", "h1,h2:9042", None, "/keys"),
        ("redis://u:a,b@h:6380/0", "h", 6380, "/0"),
    ],
)
def test_hosts(url: str, host: str, port: int | None, path: str) -> None:
    """Several hosts stay together; a comma in a password does not make a list."""
    it = parse(url)
    assert (it.host, it.port, it.path) == (host, port, path)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_prefix_is_written_into_a_url(prefix: str) -> None:
    """The prefix is read from there again; the same one may be given twice."""
    for url in ("memory://x", "redis://h/0?db=1", "sqlite:///a%3Fb.db#there"):
        written = with_prefix(url, prefix)
        assert with_prefix(written, prefix) == written
        assert parse(written).without_prefix("") == (parse(url), prefix)
        assert parse(url).without_prefix(prefix) == (parse(url), prefix)
        with pytest.raises(ConfigurationError, match="in the URL"):
            with_prefix(written, prefix + "x")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a\x1b[2Jb.db",
        "sqlite:///a%1b[2Jb.db",
        "redis://h\x9b1/0",
        "redis://us%1ber@h/0",
        "redis://h/0?command_timeout=1%1b",
        "redis://h/0?comm%0aand=1",
        "sqlite:///a\nb.db",
    ],
)
def test_nothing_in_a_url_steers_a_terminal(url: str) -> None:
    with pytest.raises(ConfigurationError, match="control character") as caught:
        parse(url)
    assert str(caught.value).isprintable()


def test_a_password_and_a_prefix_may_have_control_characters() -> None:
    it = parse("redis://u:%1b@h/0?prefix=%1b")
    assert (it.password, it.query) == ("\x1b", {"prefix": "\x1b"})


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@h:6379/0",
        f"redis://:{SECRET}@h/0",
        f"redis://h/0?sentinel_password={SECRET}",
        f"cassandra://u:{SECRET}@h1,h2:9042/k",
    ],
)
def test_secrets_are_not_shown(url: str) -> None:
    """Neither ``repr``, ``str`` nor an error shows the password."""
    it = parse(url)
    assert SECRET not in repr(it) + str(it)
    with pytest.raises(ConfigurationError) as caught:
        parse(url + ("&" if "?" in url else "?") + "nonsense=1").only("known")
    assert SECRET not in repr(caught.value) + str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "redis:h",
        "redis:/h",
        "://h",
        "redis://h:port",
        "redis://h:99999",
        "redis://h:-1",
        f"redis://u:{SECRET}/x@h/0",
        f"redis://u:{SECRET}#x@h/0",
        f"redis://u:{SECRET}?@h/0",
        f"redis://[{SECRET}/0",
        f"redis://u:{SECRET}@h:po/0",
        f"redis://u:1/{SECRET}@h/0",
        f"redis://u:1?{SECRET}@h/0",
        f"redis://u:1#{SECRET}@h/0",
        f"redis://u:p@1/{SECRET}@h/0",
        f"redis://h/0?sentinel_password={SECRET}%ff",
        "redis://h/0?a=1&a=2",
        f"redis://u:{SECRET}@h/0?a=\0",
        f"redis://u:{SECRET}\ud800@h/0",
        f"redis://u:{SECRET}%ff@h/0",
        f"redis://{SECRET}%ff:x@h/0",
        "sqlite:///x/%00y",
        "sqlite:///x/\ud800",
        "sqlite:///x/%ff",
        "sqlite:///x?rows=%00",
        "sqlite:///x?rows=%ff",
        "sqlite:///x?rows=\udcff",
    ],
)
def test_bad_urls(url: str) -> None:
    """The error shows no part that might be a password."""
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert SECRET not in repr(caught.value) + str(caught.value)
    assert caught.value.__cause__ is None
    # Tools for errors report the context even if a traceback leaves it out.
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"redis://u:{SECRET}%ff@h/0", "its %xx escapes are not UTF-8"),
        (f"redis://u:{SECRET}@h:po/0", "the port is not a number from 0 to 65535"),
        (f"redis://[{SECRET}/0", "malformed"),
    ],
)
def test_what_is_wrong_with_a_url(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert caught.value.what == f"bad store URL: {why}"


def test_a_url_is_text() -> None:
    """A Path or bytes are refused."""
    with pytest.raises(ConfigurationError, match="bytes"):
        parse(b"memory://")  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    """No text raises another error."""
    try:
        it = parse(text)
    except ConfigurationError:
        return
    assert isinstance(it, Address)
    assert str(it).startswith(it.scheme + "://")


def test_options() -> None:
    """Known options are typed; the error names the first unknown one."""
    it = parse("redis://h?pool=5.5&name=x")
    it.only("name", "pool")
    assert it.number("pool", 1.0) == 5.5
    assert it.number("absent", 1.0) == 1.0
    with pytest.raises(ConfigurationError, match=r"name='x' is not a number"):
        it.number("name", 1.0)
    with pytest.raises(ConfigurationError, match=r"'name'.*known: pool, size"):
        it.only("size", "pool")
    with pytest.raises(ConfigurationError, match="known: none"):
        it.only()
