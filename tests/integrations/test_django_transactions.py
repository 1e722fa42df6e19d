"""Django: the transaction ends inside of the lock, or the lock is refused."""

from __future__ import annotations

import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from django.db import IntegrityError, connections, models, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.integrations.django import views
from aiorwlock_remote.integrations.django.views import get_held, get_locks, hold
from aiorwlock_remote.sync import ignore_transactions
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.race import LOCK, Race, counters, waits_in
from tests.recipes.occupied_django import database as alias_of

URLS = ModuleType("tests.integrations.django_urls_of_transactions")
sys.modules[URLS.__name__] = URLS
GATED: dict[str, Race] = {}
ALIAS = "shop"

locked = hold("counter:{id:int}")
whole_class = partial(method_decorator, name="dispatch")


class Counter(models.Model):
    """A number in the database."""

    total: Any = models.IntegerField()

    class Meta:
        app_label = "tests_transactions"
        db_table = "counters"
        managed = False


def count(key: int) -> None:
    """Read, change, write; without a lock, two of them count once."""
    race = GATED["race"]
    counter = Counter.objects.using(ALIAS).get(pk=key)
    race.read()
    counter.total += 1
    counter.save(using=ALIAS)


def plain(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    count(id)
    return HttpResponse(get_held(request).resource)


def elsewhere(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the user's."""

    @wraps(view)
    def around(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return view(*args, **kwargs)

    return around


@whole_class(locked)
class WholeClass(View):
    """The hold is around all methods."""

    def post(self, request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
        return plain(request, id)


class OneMethod(View):
    """Django begins the transaction before it calls the method."""

    @locked
    def post(self, request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
        return plain(request, id)


@whole_class(transaction.non_atomic_requests(using=ALIAS))
class OneMethodOfItsOwn(View):
    """As the error of ``OneMethod`` says."""

    @locked
    @transaction.atomic(using=ALIAS)
    def post(self, request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
        return plain(request, id)


def counted(request: Request, id: int) -> Response:  # noqa: A002
    count(id)
    return Response(get_held(request).resource)


class Api(APIView):  # type: ignore[misc]
    """A view of Django REST framework's, as above."""

    authentication_classes: Any = ()
    permission_classes: Any = ()

    @locked
    def post(self, request: Request, id: int) -> Response:  # noqa: A002
        return counted(request, id)


@whole_class(transaction.non_atomic_requests(using=ALIAS))
class Actions(ViewSet):  # type: ignore[misc]
    """A set of them, as above."""

    authentication_classes: Any = ()
    permission_classes: Any = ()

    @locked
    @transaction.atomic(using=ALIAS)
    def create(self, request: Request, id: int) -> Response:  # noqa: A002
        return counted(request, id)


@whole_class(locked)
class WholeApi(Api):
    """The hold is around its authentication, too."""

    def post(self, request: Request, id: int) -> Response:  # noqa: A002
        return counted(request, id)


@locked
@api_view(["POST"])  # type: ignore[untyped-decorator]
def function_of_api(request: Request, id: int) -> Response:  # noqa: A002
    return counted(request, id)


@hold("account:{id:int}")
@hold("counter:{id:int}")
def two_holds(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    return plain(request, id)


def by_hand(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    with get_locks().mutex("counter", id):
        count(id)
    return HttpResponse(request.path)


@transaction.non_atomic_requests(using=ALIAS)
def by_hand_first(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    with get_locks().mutex("counter", id), transaction.atomic(using=ALIAS):
        count(id)
    return HttpResponse(request.path)


RIGHT: dict[str, Any] = {
    "view": locked(plain),
    "decorated": elsewhere(never_cache(elsewhere(locked(elsewhere(plain))))),
    "two": two_holds,
    "class": WholeClass.as_view(),
    "own": OneMethodOfItsOwn.as_view(),
    "rest-function": function_of_api,
    "rest-class": WholeApi.as_view(),
    "rest-set": Actions.as_view({"post": "create"}),
    "lock-first": by_hand_first,
}
REFUSED: dict[str, Any] = {
    "method": OneMethod.as_view(),
    "rest": Api.as_view(),
    "atomic-around": transaction.atomic(using=ALIAS)(locked(plain)),
    "lock-inside": by_hand,
}


def a_bug(_request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    count(id)
    raise IntegrityError


def loses_it(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    count(id)
    for seen in get_locks().list():
        get_locks().force_release(seen, reason="test")
    with pytest.raises(Exception, match="lost"):
        get_held(request).extend()
    return HttpResponse("done")


def in_autocommit(_request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    inside = connections[ALIAS].in_atomic_block
    return HttpResponse(f"{id} {inside}")


@transaction.non_atomic_requests(using=ALIAS)
def never_atomic(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    return in_autocommit(request, id)


URLS.urlpatterns = [  # type: ignore[attr-defined]
    *(path(f"{name}/<int:id>", view) for name, view in (RIGHT | REFUSED).items()),
    path("bug/<int:id>", locked(a_bug)),
    path("lost/<int:id>", locked(loses_it)),
    path(
        "above/<int:id>",
        transaction.non_atomic_requests(using=ALIAS)(locked(in_autocommit)),
    ),
    path("below/<int:id>", locked(never_atomic)),
    path("atomic/<int:id>", locked(in_autocommit)),
]


@pytest.fixture
def race(database: str) -> Iterator[Race]:
    """A project whose requests are transactions."""
    connections.databases[ALIAS] = connections.databases.pop(alias_of(database))
    connections.databases[ALIAS]["ATOMIC_REQUESTS"] = True
    with (
        override_settings(
            AIORWLOCK_REMOTE={"store": FaultyMemory()},
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=URLS.__name__,
            MIDDLEWARE=[f"{views.__name__}.LockErrorMiddleware"],
            REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        ),
        counters(database),
    ):
        GATED["race"] = race = Race(database, waits_in(get_locks))
        yield race
        connections[ALIAS].close()
    del connections[ALIAS]
    del connections.databases[ALIAS]


@contextmanager
def a_connection() -> Iterator[None]:
    """This thread's own, whose commit the race may stop."""
    connection: Any = connections[ALIAS]
    commit = connection.commit

    def later() -> None:
        GATED["race"].before_commit()
        commit()

    connection.commit = later
    try:
        yield
    finally:
        connection.close()


def posts(url: str) -> bool:
    with a_connection():
        answer = Client(raise_request_exception=False).post(url)
    assert answer.status_code in (200, 500)
    return bool(answer.status_code == 200)


@pytest.mark.parametrize("name", RIGHT)
def test_no_change_is_lost(race: Race, name: str) -> None:
    assert race.lost(lambda: posts(f"/{name}/7")) == 0
    assert race.total() == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_lock_inside_of_a_transaction_is_refused(race: Race, name: str) -> None:
    assert race.lost(lambda: posts(f"/{name}/7")) == 0
    assert race.total() == 0
    with pytest.raises(ConfigurationError, match="transaction of the database 'shop'"):
        Client().post(f"/{name}/7")


def test_an_error_rolls_back(race: Race) -> None:
    assert not posts("/bug/7")
    assert race.total() == 0
    with get_locks().mutex(*LOCK).acquire(timeout=0):
        pass


def test_a_lost_lock_rolls_back(race: Race) -> None:
    assert Client().post("/lost/7").status_code == 503
    assert race.total() == 0


@pytest.mark.parametrize("where", ["above", "below"])
def test_a_view_without_a_transaction_stays_so(race: Race, where: str) -> None:
    assert Client().post(f"/{where}/7").content == b"7 False"
    assert Client().post("/atomic/7").content == b"7 True"
    del race


@pytest.mark.parametrize("savepoint", [False, True])
def test_unsupported_uses_are_refused(race: Race, *, savepoint: bool) -> None:
    """In any depth, and nothing is acquired."""
    locks = get_locks()
    pair = locks.rwlock(*LOCK)
    wanted: list[Callable[[], object]] = [
        locks.mutex(*LOCK).acquire,
        locks.mutex(*LOCK).try_acquire,
        pair.reader.acquire,
        lambda: locks.multi(pair.writer),
        lambda: locks.once("report", list, period=60),
        locks.once("report", period=60).__enter__,
        locks.synchronized("counter", "{key}")(count).__get__(7),
    ]
    with transaction.atomic(using=ALIAS), transaction.atomic(ALIAS, savepoint):
        for acquire in wanted:
            with pytest.raises(ConfigurationError, match="inside of a transaction"):
                acquire()
        with locks.semaphore("api", 1, limit=1), ignore_transactions():
            assert locks.mutex(*LOCK).try_acquire().release()  # type: ignore[union-attr]
    assert not list(locks.list())
    with locks.mutex(*LOCK), transaction.atomic(ALIAS, durable=True):
        pass
    del race


def test_other_threads_and_other_ends_are_free(race: Race) -> None:
    """A transaction is one thread's; in ``on_commit`` it has ended."""
    got: list[bool] = []

    def briefly() -> None:
        with get_locks().mutex(*LOCK):
            got.append(True)

    with transaction.atomic(using=ALIAS):
        thread = threading.Thread(target=briefly)
        thread.start()
        thread.join()
        transaction.on_commit(briefly, using=ALIAS)
    assert got == [True, True]
    del race


def test_a_test_case_is_no_transaction(race: Race) -> None:
    """Each of its tests is one; what is refused outside of it is refused inside."""
    seen: list[str] = []

    class Case(TestCase):
        databases = {ALIAS}  # noqa: RUF012 - of Django's

        def test_it(self) -> None:
            with get_locks().mutex(*LOCK):
                seen.append("held")
            seen.append(str(self.client.post("/view/7").status_code))
            client = Client(raise_request_exception=False)
            seen.append(str(client.post("/method/7").status_code))
            with self.captureOnCommitCallbacks(using=ALIAS, execute=True):
                transaction.on_commit(partial(seen.append, "committed"), using=ALIAS)
                with (
                    transaction.atomic(using=ALIAS),
                    pytest.raises(ConfigurationError, match="transaction"),
                ):
                    get_locks().mutex(*LOCK).acquire()

    result = unittest.TestSuite([Case("test_it")]).run(unittest.TestResult())
    assert not result.errors + result.failures
    assert seen == ["held", "200", "500", "committed"]
    assert race.total() == 0


app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.task_always_eager = True


def a_task(body: Callable[[int], None]) -> Callable[[], bool]:
    def work() -> None:
        body(7)

    task = app.task(name=f"count-{id(body)}")(work)

    def call() -> bool:
        with a_connection():
            return bool(task.delay().successful())

    return call


def test_tasks_of_celery(race: Race) -> None:
    synchronized = get_locks().synchronized("counter", "{key}")
    atomic = transaction.atomic(using=ALIAS)
    right = a_task(synchronized(atomic(count)))
    assert race.lost(right) == 0
    assert race.total() == 2


def test_a_task_whose_transaction_is_outside_is_refused(race: Race) -> None:
    synchronized = get_locks().synchronized("counter", "{key}")
    wrong = a_task(transaction.atomic(using=ALIAS)(synchronized(count)))
    assert race.lost(wrong) == 0
    assert race.total() == 0
