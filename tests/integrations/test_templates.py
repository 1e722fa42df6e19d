"""Which lock a path names, and what is refused before the first request."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    LockError,
    LockLost,
    LockTimeout,
    NotOwner,
    StaleFence,
    TooManyWaiters,
    UpgradeConflict,
)
from aiorwlock_remote.integrations import aiohttp, fastapi
from aiorwlock_remote.integrations._http import (
    HoldSpec,
    LockNameTemplate,
    SeenHolds,
    answer,
)

TEXT = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
HOLDS: list[Callable[..., object]] = [fastapi.hold, aiohttp.hold]


@pytest.mark.parametrize(
    ("template", "values", "name"),
    [
        ("report:daily", {}, "daily"),
        ("report:a:b", {}, "a:b"),
        ("report:{{x}}", {}, "{x}"),
        ("order:{id}", {"id": "007"}, "007"),
        ("order:{id}", {"id": 7}, 7),
        ("order:{id:int}", {"id": "007"}, 7),
        ("order:{id:int}", {"id": "+7"}, 7),
        ("order:{id:str}", {"id": "007"}, "007"),
        ("order:{id:uuid}", {"id": TEXT}, UUID(TEXT)),
        ("order:{id:uuid}", {"id": f"{{{TEXT.lower()}}}"}, UUID(TEXT)),
        ("order:eu-{id}", {"id": "a-b"}, "eu-a-b"),
        ("order:{a}/{b}", {"a": "x/y", "b": "z"}, "x%2Fy/z"),
        ("order:{a}/{b}", {"a": "x", "b": "y%z"}, "x/y%25z"),
    ],
)
def test_names(template: str, values: dict[str, Any], name: object) -> None:
    assert LockNameTemplate(template).resource_id(values) == name


parts = st.text(st.sampled_from("a/%-2F"), min_size=1, max_size=6)


@given(parts, parts, parts, parts)
def test_no_two_paths_share_a_lock(a: str, b: str, c: str, d: str) -> None:
    template = LockNameTemplate("order:{a}/{b}")
    one = template.resource_id({"a": a, "b": b})
    other = template.resource_id({"a": c, "b": d})
    assert (one == other) == ((a, b) == (c, d))


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("order:{id:int}", "x"),
        ("order:{id:int}", ""),
        ("order:{id:int}", "7_0"),
        ("order:{id:int}", "٣"),
        ("order:{id:int}", "9" * 101),
        ("order:{id:uuid}", "x"),
        ("order:{id}", ""),
        ("order:eu-{id}", ""),
        ("order:{id}", "\ud800"),
        ("order:{id}", 1.5),
        ("order:{id}", True),
    ],
)
def test_a_path_that_names_no_lock(template: str, value: object) -> None:
    with pytest.raises((ValueError, ConfigurationError)):
        LockNameTemplate(template).resource_id({"id": value})


@pytest.mark.parametrize("hold", HOLDS, ids=["fastapi", "aiohttp"])
@pytest.mark.parametrize(
    "template",
    [
        *("", "order", "order:", ":x", "{id}:x", "order:{", "order:}", "order:{}"),
        *("order:{0}", "order:{a.b}", "order:{a[0]}", "order:{id!r}", "order:{id:d}"),
        *("order:{id:{x}}", "order:{a}{b}", "order:{a}/{a}", "order:{id:float}"),
        *(None, 5, b"order:{id}"),
    ],
)
def test_bad_templates(hold: Callable[..., object], template: object) -> None:
    with pytest.raises(ConfigurationError):
        hold(template)


@pytest.mark.parametrize("hold", HOLDS, ids=["fastapi", "aiohttp"])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "w"},
        {"mode": "WRITE"},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"reason": "x" * 2000},
        {"reason": 5},
        {"reason": None},
        {"lease": 0.01},
        {"policy": "unfair"},
        {"colour": "red"},
    ],
)
def test_bad_options(hold: Callable[..., object], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        hold("order:{id}", **options)


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (LockTimeout(), 423, {"Retry-After": "1"}),
        (LockTimeout(holders=("secret",)), 423, {"Retry-After": "1"}),
        (LockTimeout(holders=("x",), retry_after=0.2), 423, {"Retry-After": "1"}),
        (LockTimeout(holders=("x",), retry_after=7.2), 423, {"Retry-After": "8"}),
        # The holder has renewed its lease of 30 s in time: it lives.
        (LockTimeout(holders=("x",), retry_after=22), 423, {"Retry-After": "1"}),
        (LockTimeout(unanswered=True), 503, {"Retry-After": "5"}),
        (LockBusy(), 423, {"Retry-After": "1"}),
        (LockLost(), 503, {"Retry-After": "1"}),
        (AcquireUncertain(), 503, {"Retry-After": "5"}),
        (BackendUnavailable(what="secret"), 503, {"Retry-After": "5"}),
        (BackendError(retry_after=7.5), 503, {"Retry-After": "8"}),
        (TooManyWaiters(), 503, {"Retry-After": "1"}),
        (UpgradeConflict(), 409, {}),
        (StaleFence(fence=1, highest=2), 412, {}),
    ],
)
def test_answers_to_errors(
    error: LockError, status: int, headers: dict[str, str]
) -> None:
    answered = answer(error, SeenHolds())
    assert answered is not None
    assert (answered.status, answered.headers) == (status, headers)
    assert answered.body["status"] == status
    assert "secret" not in str(answered.body)


def test_bugs_are_not_answered_but_raised() -> None:
    assert answer(NotOwner(), SeenHolds()) is None
    assert answer(ConfigurationError(), SeenHolds()) is None


def test_retry_after_is_how_long_such_locks_are_held() -> None:
    seen = SeenHolds()
    for seconds in (0.1, 4.2, 90.0):
        seen.add("order/7", 30.0, seconds)

    def answered(error: LockError) -> str:
        found = answer(error, seen)
        assert found is not None
        return found.headers["Retry-After"]

    assert answered(LockTimeout(resource="order/8", retry_after=21.0)) == "5"
    assert answered(LockBusy(resource="order/8")) == "5"
    assert answered(TooManyWaiters(resource="order/8")) == "5"
    assert answered(LockTimeout(resource="invoice/8", retry_after=21.0)) == "1"
    # Its holder has missed a renewal, and may be dead.
    assert answered(LockTimeout(resource="order/8", retry_after=14.0)) == "14"


def test_when_a_renewal_is_overdue_depends_on_the_lease() -> None:
    seen = SeenHolds()
    waited = LockTimeout(resource="order/7", retry_after=20.0)
    assert seen.retry_after(waited) == 1.0
    seen.default_lease = 60.0
    assert seen.retry_after(waited) == 20.0
    seen.add("order/7", 30.0, 0.5)
    assert seen.retry_after(waited) == 0.5
    seen.add("order/9", 300.0, 0.5)
    assert seen.retry_after(waited) == 20.0
    seen.default_lease = None
    assert seen.retry_after(LockTimeout(resource="x/7", retry_after=20.0)) == 1.0


def test_the_holder_of_a_busy_lock_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At INFO, as a 423 is no fault; what fails is a warning."""
    caplog.set_level("INFO")
    holders = ("write 4f1c… web-3/71: refund",)
    answer(LockTimeout(resource="order/7", mode="write", holders=holders), SeenHolds())
    answer(BackendUnavailable(what="down"), SeenHolds())
    (refused, unavailable) = caplog.records
    assert refused.levelname == "INFO"
    assert refused.getMessage() == (
        "refused error=order/7 (write) not obtained in 0 s, held by write 4f1c… "
        "web-3/71: refund retry_after=1 resource=order/7"
    )
    assert unavailable.levelname == "WARNING"
    assert unavailable.getMessage() == "unavailable error=down retry_after=5"


@pytest.mark.parametrize(
    "template",
    [
        *("a:{query.id}", "a:{body.id}", "a:{path.id:int}", "a:{header.id:int}"),
        *("a:{query.:int}", "a:{query.a.b:int}", "a:{query.a-b:int}", "a:{.id:int}"),
        *("a:{query.id:float}", "a:{query.a:int}{body.a:int}"),
    ],
)
def test_bad_templates_of_a_query_or_a_body(template: str) -> None:
    with pytest.raises(ConfigurationError):
        LockNameTemplate(template)


def test_no_two_requests_share_a_lock_by_their_separators() -> None:
    spec = HoldSpec("a:{query.x:str}/{body.x:str}", "write", 1, "", {})
    made = {
        spec.template.resource_id(
            spec.values({}, partial(_list_of, x), json.dumps({"x": y}))
        )
        for x, y in [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b%2Fc")]
    }
    assert len(made) == 4


def _list_of(value: str, _: str) -> list[str]:
    return [value]
