"""The live page in a real browser, on a store in a file."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp as ASGIApplication
from starlette.types import Receive, Scope, Send

from aiorwlock_remote import LockInfo, Locks, connect
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.integrations.board import site as sites
from aiorwlock_remote.integrations.board.asgi import asgi_app
from aiorwlock_remote.integrations.board.site import BoardSite
from aiorwlock_remote.locks.changes import StoreScanner
from aiorwlock_remote.locks.connect import Connecting
from tests.cli.fix_cli import TIMEOUT, Store
from tests.cli.watch.fix_watch import holder, order, queued
from tests.conformance.stores.sqlite import PlainSqlite
from tests.integrations.board import fix_board
from tests.integrations.board.fix_board import FakeStore
from tests.servers.chromium import Page
from tests.servers.process import free_port

SET = (
    "((at, text) => { const field = document.querySelector(at); field.value = text;"
    " field.dispatchEvent(new Event('input')); })"
)
"""A script: writes a text into a field."""
EVIL = "<img src=x onerror=hacked=1><script>hacked=1</script>"


@contextmanager
def served(
    tab: Page,
    store: StoreScanner | Connecting,
    **options: Any,  # noqa: ANN401
) -> Iterator[str]:
    """The page of a store."""
    with serving(tab, BoardSite(store, every=0.2, **options)) as url:
        yield url


@contextmanager
def serving(tab: Page, site: BoardSite) -> Iterator[str]:
    """A page, served by a thread until the tab has left it."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(asgi_app(site), port=port, log_config=None))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(),))
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        tab.open("about:blank")  # else the page goes on asking a server that is gone
        loop.call_soon_threadsafe(site.board.stop)
        server.should_exit = True
        thread.join(TIMEOUT)
        loop.run_until_complete(site.board.aclose())
        loop.close()


def until(seen: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    path = tmp_path / "locks.db"
    store = Store(f"sqlite:///{path}", PlainSqlite(path))
    store.leave_behind("deploy", "db", "gluww")
    return store


def row(name: str) -> str:
    """A script: the text of the row of that name, null without it."""
    return (
        f"[...document.querySelectorAll('.row')].find(row => row.children[0].title"
        f" === {json.dumps(name)})?.innerText"
    )


def break_in(tab: Page, reason: str) -> None:
    tab.click("#details .card .quiet")
    tab.until("document.querySelector('#dialog').open")
    tab.write(reason)
    tab.click("#dialog-ok")


def test_the_page_shows_held_locks_and_their_changes(store: Store, tab: Page) -> None:
    name, secret = ("order", EVIL), "gluww"
    with served(tab, connect(store.url), title=f"the store {EVIL}") as url:
        tab.open(url)
        assert "never ends" in tab.until(row("deploy/db"))

        async def hold(locks: Locks) -> None:
            async with locks.mutex(*name).acquire(reason=f"refund {EVIL} \u202e"):
                shown = tab.until(row(f"order/{EVIL}"))
                assert f"refund {EVIL} \\u202e" in shown
                tab.until("document.querySelector('.counts b').innerText === '2'")

        store.make(hold)
        assert "free" in tab.until(f"({row(f'order/{EVIL}')} ?? '').match(/free/)?.[0]")
        tab.until("document.querySelectorAll('.log li').length >= 3")
        # Text made no element, and no script ran.
        assert tab.value("document.querySelectorAll('img, script').length") == 2
        assert tab.value("typeof hacked") == "undefined"
        assert secret not in tab.value("document.documentElement.outerHTML")
        # Behind a login of the application the page says nothing of logins.
        assert "login" not in tab.text()
        # Red is what is left behind, and nothing else.
        red = "getComputedStyle(document.documentElement).getPropertyValue('--left')"
        tab.click(".row")
        tab.until("document.querySelector('#details .card')")
        assert (
            tab.value("document.querySelectorAll('#details .card .quiet').length") == 0
        )
        assert tab.value("document.querySelectorAll('.row.left').length") == 1
        assert tab.value(red).startswith("#c")


def test_the_page_breaks_the_shown_grant_and_no_other(store: Store, tab: Page) -> None:
    with served(tab, connect(store.url), allow_break=True) as url:
        tab.open(url)
        tab.until(row("deploy/db"))
        tab.click(".row")
        tab.until("document.querySelector('#details .card .quiet')")
        tab.click("#details .card .quiet")
        tab.until("document.querySelector('#dialog').open")
        # While the user thinks, the holder changes.
        store.make(lambda locks: locks.release_mutex_lock("deploy", "db", "gluww"))
        store.leave_behind("deploy", "db", "other")
        tab.write("db-2 was shut down")
        tab.press("Enter")
        tab.until(
            "document.querySelector('#dialog-error').innerText.includes('Nothing')"
        )
        tab.press("Escape")
        tab.until("!document.querySelector('#dialog').open")
        (seen,) = store.json("ls")
        assert seen["locked"]
        fence = seen["holders"][0]["fence"]
        tab.until(
            f"document.querySelector('#details .card').innerText.includes({fence})"
        )
        break_in(tab, "it is really down")
        tab.until("!document.querySelector('#dialog').open")
        assert store.json("ls") == []
        tab.until(f"({row('deploy/db')} ?? '').includes('free')")


def test_the_page_opens_with_the_login_of_a_proxy(store: Store, tab: Page) -> None:
    """A browser refuses requests to addresses that contain a login."""
    with served(tab, connect(store.url), allow_break=True) as url:
        tab.open(url.replace("http://", "http://ops:secret@"))
        tab.until(row("deploy/db"))
        tab.until(
            "performance.getEntriesByType('resource').some(one =>"
            " one.name.endsWith('/format.js') && one.responseStatus === 200)"
        )
        tab.click(".row")
        tab.until("document.querySelector('#details .card .quiet')")
        break_in(tab, "db-2 was shut down")
        tab.until("!document.querySelector('#dialog').open")
        assert store.json("ls") == []


def test_a_board_with_all_its_viewers_says_so(
    tab: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "MAX_VIEWERS", 0)
    with served(tab, FakeStore(order(1, holder()))) as url:
        tab.open(url)
        tab.until("document.querySelector('#away').innerText.includes('no room')")
        assert "full" in tab.text("#live")
        monkeypatch.setattr(sites, "MAX_VIEWERS", 1)
        tab.open(url)
        tab.until(row("order/1"))


def test_keys_and_filters(store: Store, tab: Page) -> None:
    for number in range(5):
        store.leave_behind("order", str(number), "a")
    count = "document.querySelectorAll('.row').length"
    with served(tab, connect(store.url)) as url:
        tab.open(url)
        tab.until(f"{count} === 6")
        tab.press("/")
        tab.write("order/3")
        tab.until(f"{count} === 1")
        tab.value(f"{SET}('#filter', '')")
        tab.until(f"{count} === 6")
        tab.value(f"{SET}('#type', 'deploy')")
        tab.until(f"{count} === 1")
        tab.value(f"{SET}('#type', '')")
        tab.click("[data-show=waiting]")
        tab.until("!document.querySelector('#empty').hidden")
        tab.click("[data-show=left]")
        tab.until(f"{count} === 6")
        # From row to row, into the details and back, without a mouse.
        tab.value("document.querySelector('.row').focus()")
        for key in ("ArrowDown", "ArrowDown", "ArrowUp", "End", "Home", "ArrowDown"):
            tab.press(key)
        assert tab.value("document.activeElement.children[0].title") == "order/0"
        tab.press("Enter")
        tab.until("document.querySelector('#details-name')?.innerText === 'order/0'")
        tab.press("Escape")
        tab.until("document.querySelector('#details').hidden")
        assert tab.value("document.activeElement.children[0].title") == "order/0"


@asynccontextmanager
async def in_turn(*apps: ASGIApplication, under: str) -> AsyncIterator[str]:
    """A proxy that passes each request below a path on to the next application."""
    turns = count()

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(under)
            assert path != scope["path"]
            inner = {**scope, "path": path, "raw_path": path.encode()}
            await apps[next(turns) % len(apps)](inner, receive, send)

    port = free_port()
    config = uvicorn.Config(proxy, port=port, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await fix_board.until(lambda: server.started)
    yield f"http://127.0.0.1:{port}{under}/"
    server.should_exit = True
    await serving


def test_any_process_answers_the_page_of_another(store: Store, tab: Page) -> None:
    """Four boards behind a proxy, under a path that they do not know."""
    sites_of_all = [
        BoardSite(connect(store.url), every=0.2, allow_break=True) for _ in range(4)
    ]
    left = threading.Event()

    async def serve() -> None:
        apps = [asgi_app(site) for site in sites_of_all]
        async with in_turn(*apps, under="/tools/locks") as url:
            urls.append(url)
            await asyncio.to_thread(left.wait)
            for site in sites_of_all:
                await site.board.aclose()

    urls: list[str] = []
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        until(lambda: urls)
        tab.open(urls[0])
        for number in range(6):
            tab.until(f"({row('deploy/db')} ?? '').includes('never ends')")
            tab.value("[...document.querySelectorAll('.row')][0].click()")
            tab.until("document.querySelector('#details .card .quiet')")
            break_in(tab, f"attempt {number}")
            tab.until("!document.querySelector('#dialog').open")
            assert store.json("ls") == []
            tab.until(f"({row('deploy/db')} ?? '').includes('free')")
            # What ended is in the time line, which comes with the events of one board.
            bars = "document.querySelectorAll('#details .bar:not(.gap)').length"
            tab.until(f"{bars} === {number + 1}")
            store.leave_behind("deploy", "db", "gluww")
    finally:
        tab.open("about:blank")
        left.set()
        thread.join(TIMEOUT)


LONG = "type-of-a-resource-that-is-long" * 2
HEBREW, ARABIC = "הזמנה ארוכה " * 8, "رقم الطلب الطويل " * 8
CROWD = [
    *(order(f"over{n}", holder(expires_in=-2470.0, age=2500.0)) for n in range(97)),
    order("zz", holder("b", expires_in=None, age=90_000.0)),
    order("ya", holder("c", age=300.0), queue=[queued(waiting=2, age=12.0)]),
    order("x", holder("d", host=ARABIC, reason=ARABIC)),
    order(HEBREW, holder("e")),
    replace(order(1, holder("f")), target=resource(LONG, 7), resource_type=LONG),
]
"""What never ends, among many leases that ran out; and names that are hard to show."""

CUT = """
(cell => [...cell.querySelectorAll('.one, .one > *')]
  .some(part => part.scrollWidth > part.clientWidth + 1))
"""
"""A script: whether a text in a cell is cut."""


@pytest.mark.parametrize("width", [1280, 390])
def test_what_blocks_others_comes_first(tab: Page, width: int) -> None:
    tab.size(width, 844, phone=width < 500)
    with served(tab, FakeStore(*CROWD)) as url:
        tab.open(url)
        tab.until("document.querySelectorAll('.row').length > 5")
        # In the order of their places, not of the document.
        shown = tab.value(
            "[...document.querySelectorAll('.row')].sort((a, b) =>"
            " a.ariaRowIndex - b.ariaRowIndex).map(one =>"
            " [one.children[0].title, one.className, one.innerText])"
        )
        assert [name for name, _, _ in shown[:2]] == ["order/zz", "order/ya"]
        assert "over" in shown[5][1]
        assert [kind for _, kind, _ in shown if "left" in kind] == ["row left"]
        for text in ("2 write", "for 12 s", "for 5 min"):
            assert text in shown[1][2]
        colour = "getComputedStyle(document.querySelector('.row.%s .lease .one')).color"
        assert tab.value(colour % "left") != tab.value(colour % "over")
        assert tab.text(".counts .alarm b") == "1"
        # "ended 41 min ago" is whole.
        assert tab.value(f"{CUT}(document.querySelector('.row.over .lease'))") is False


@pytest.mark.parametrize("width", [1280, 390])
def test_names_that_are_hard_to_show(tab: Page, width: int) -> None:
    tab.size(width, 844, phone=width < 500)
    with served(tab, FakeStore(*CROWD[-3:])) as url:
        tab.open(url)
        tab.until("document.querySelectorAll('.row').length === 3")
        ids = "[...document.querySelectorAll('.row .id')]"
        # The id behind a long type is whole.
        whole = f"{ids}.find(id => id.textContent === '7')"
        assert tab.value(f"{whole}.scrollWidth <= {whole}.clientWidth")
        name = "document.querySelector('.row .name').getBoundingClientRect().width"
        assert tab.value(name) >= 200
        # A text from right to left is cut at its end, on the left, as its box flows.
        flows = "getComputedStyle(%s).direction"
        hebrew = f"{ids}.find(id => id.textContent.startsWith('הז'))"
        assert tab.value(f"{hebrew}.scrollWidth > {hebrew}.clientWidth")
        assert tab.value(flows % hebrew) == "rtl"
        arabic = "[...document.querySelectorAll('.holder .two')].find(one =>"
        arabic += " one.textContent.startsWith('رقم'))"
        assert tab.value(flows % arabic) == "rtl"
        # A mode has one colour, also beside what is red.
        badges = "new Set([...document.querySelectorAll('.badge')].map(one =>"
        badges += " getComputedStyle(one).color)).size"
        assert tab.value(badges) == 1


def test_the_last_changes_say_what_happened_on_a_phone(tab: Page) -> None:
    tab.size(390, 844, phone=True)
    fake = FakeStore(order(1, holder()))
    with served(tab, fake) as url:
        tab.open(url)
        tab.until(row("order/1"))
        fake.found = []
        tab.until("document.querySelector('.log').innerText.includes(' ended after')")
        assert "is free" in tab.text(".log")


ORPHANS = """
[...document.querySelectorAll('body *')].filter(element =>
  [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())
  && element.checkVisibility() && !element.matches('.skip, script, noscript')
  && !element.closest('header, main, aside, footer')).map(element => element.outerHTML)
"""
"""A script: texts in no landmark."""


def test_all_parts_are_reached_by_keyboard_and_lie_in_landmarks(tab: Page) -> None:
    tab.size(1280, 500)
    fake = FakeStore(*CROWD)
    with served(tab, fake, notice="No login of its own.") as url:
        tab.open(url)
        tab.until("document.querySelectorAll('.row').length > 5")
        fake.error = BackendUnavailable(what="refused")
        tab.until("!document.querySelector('#away').hidden")
        assert tab.value(ORPHANS) == []
        tab.value("document.querySelector('.row').focus()")
        tab.press("Tab")
        assert tab.value("document.activeElement.matches('aside.side')")


RATIO = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = text => {
  const [r, g, b] = parse(text).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ratio = (...colours) => {
  const [a, b] = colours.map(light);
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
};
"""
CONTRAST = (
    f"(() => {{ {RATIO}"
    """
  const ground = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if ((parse(color)[3] ?? 1) > 0) return color;
    }
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!text || !element.checkVisibility()) continue;
    if (element.closest('svg, select')) continue;
    const found = ratio(getComputedStyle(element).color, ground(element));
    if (found < 4.5) low.push([element.className, element.innerText, found]);
  }
  return low;
})()
"""
)
GAP_CONTRAST = (
    f"(() => {{ {RATIO}"
    """
  return ratio(getComputedStyle(document.querySelector('.row .bar.gap')).fill,
    getComputedStyle(document.querySelector('.row')).backgroundColor);
})()
"""
)
"""A script: how well the line is seen that says "not watched"."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(store: Store, tab: Page, scheme: str) -> None:
    tab.size(360, 740, phone=True)
    tab.prefers(color_scheme=scheme, reduced_motion="reduce")
    long = "w" * 190
    store.leave_behind("order", long, "a")
    with served(tab, connect(store.url), allow_break=True, title="x" * 300) as url:
        tab.open(url)
        tab.until(row(f"order/{long}"))
        assert tab.value("document.documentElement.scrollWidth") == 360
        assert tab.value(CONTRAST) == []
        assert tab.value(GAP_CONTRAST) >= 3
        tab.click(".row:nth-of-type(2)")
        tab.until("document.querySelector('#details .card')")
        assert tab.value("document.querySelector('#details').scrollWidth") <= 360
        assert tab.value(CONTRAST) == []
        tab.click("#details .card .quiet")
        tab.until("document.querySelector('#dialog').open")
        box = "document.querySelector('#dialog').getBoundingClientRect()"
        assert tab.value(f"{box}.left") >= 0
        assert tab.value(f"{box}.right") <= 360
        ground = tab.value("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) is (scheme == "dark")
        live = "getComputedStyle(document.querySelector('#live'), '::before')"
        assert tab.value(f"{live}.animationName") == "none"


FORMAT = """
import('/format.js').then(format => {
  const view = (name, holders, queue = [], more = {}) => ({
    row: 1, name, holders: holders.map(one => ({ends: 9, mode: 'write', ...one})),
    queue, ...more,
  });
  const held = since => [{since}];
  const waits = since => [
    {since, mode: 'write', tasks: 2}, {since, mode: 'read', tasks: 1},
  ];
  const names = (views, how) => format.order(views, how, 8).map(one => one.name).join();
  const some = () => [
    view('order/10', held(3)), view('order/9', held(1)),
    view('a/free', [], [], {freed: 5}), view('late/1', held(2), waits(4)),
    view('early/1', held(2), waits(1)),
    view('lost/1', [{since: 0, ends: null, left: true}]),
    view('aa/over', [{since: 0, ends: -1}]),
  ];
  const {bars, grants, waits: below} = format.lanes(
    view('x', [{since: 5, mode: 'read'}, {since: 6, mode: 'read'}], waits(7)),
    [{since: 0, to: 5, mode: 'write'}, {since: -9, to: -5, mode: 'write'}], -1, 10, 3);
  return {
    spans: [0.04, 9.96, 61, 119, 120, 7199, 7200, 200000].map(format.span),
    lease: [{ends: null}, {ends: 12}, {ends: 9}].map(one => format.leaseLeft(one, 10)),
    waiting: format.waiting(view('x', [], waits(0))),
    urgent: names(some(), 'urgent'), name: names(some(), 'name'),
    oldest: names(some(), 'oldest'),
    lanes: bars.map(bar => [bar.kind, bar.from, bar.to, bar.lane]), grants, below,
  };
})
"""


def test_words_orders_and_lanes(tab: Page) -> None:
    with served(tab, FakeStore()) as url:
        tab.open(url)
        tab.until("document.querySelector('#empty:not([hidden])')")
        found = tab.value(FORMAT)
    assert found["spans"] == [
        *("0.0 s", "10.0 s", "61 s", "119 s", "2 min", "120 min", "2 h", "2 d"),
    ]
    assert found["lease"] == ["never ends", "2.0 s left", "ended 1.0 s ago"]
    assert found["waiting"] == "2 write, 1 read"
    urgent = [
        *("lost/1", "early/1", "late/1", "order/9", "order/10", "aa/over", "a/free")
    ]
    assert found["urgent"].split(",") == urgent
    by_name = [
        "a/free",
        "aa/over",
        "early/1",
        "late/1",
        "lost/1",
        "order/9",
        "order/10",
    ]
    assert found["name"].split(",") == by_name
    oldest = [
        *("lost/1", "order/9", "early/1", "late/1", "order/10", "a/free", "aa/over")
    ]
    assert found["oldest"].split(",") == oldest
    assert found["lanes"] == [
        ["write", 0, 5, 0],
        ["read", 5, 10, 0],
        ["read", 6, 10, 1],
        ["wait", 7, 10, 2],
        ["wait", 7, 10, 3],
    ]
    assert (found["grants"], found["below"]) == (2, 2)


def test_a_hidden_page_looks_no_more(tab: Page) -> None:
    site = BoardSite(FakeStore(order(1, holder())), every=0.2)
    # Twenty seconds become a tenth of a second.
    tab.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="{ const later = setTimeout;"
        " window.setTimeout = (run, ms) => later(run, ms / 200) }",
    )
    hide = (
        "(hidden => { Object.defineProperty(document, 'hidden',"
        " {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')) })"
    )
    with serving(tab, site) as url:
        tab.open(url)
        tab.until(row("order/1"))
        assert site.board.viewers == 1
        tab.value(f"{hide}(true)")
        until(lambda: site.board.viewers == 0)
        tab.value(f"{hide}(false)")
        until(lambda: site.board.viewers == 1)
        tab.until("document.querySelector('#live').dataset.state === 'live'")


class ManyLocks(FakeStore):
    """A store with 10,000 locks that are held."""

    def __init__(self) -> None:
        super().__init__()
        self.age = 1.0

    async def scan(self) -> list[LockInfo]:
        self.age += 0.2
        held: dict[str, Any] = {"age": self.age, "expires_in": 30 - self.age % 10}
        return [
            order(f"{number:05}", holder(reason=f"r{number % 7}", **held))
            for number in range(10_000)
        ]


def test_10_000_locks_stay_usable(tab: Page) -> None:
    with served(tab, ManyLocks()) as url:
        tab.open(url)
        tab.until("document.querySelector('.counts b').innerText === '10,000'")
        assert tab.value("document.querySelectorAll('.row').length") < 60
        assert tab.value("document.querySelector('#grid').ariaRowCount") == "10001"
        tab.value("scrollTo(0, document.body.scrollHeight)")
        tab.until(row("order/09999"))
        assert tab.value("document.querySelectorAll('.row').length") < 60
        # 3 ms on a machine that does nothing else; 10,000 rows would take seconds.
        slowest = "performance.getEntriesByName('board-draw').at(-1).duration"
        assert min(tab.value(slowest) for _ in range(3)) < 250
        tab.value("scrollTo(0, 0)")
        tab.press("/")
        tab.write("order/04217")
        tab.until("document.querySelectorAll('.row').length === 1")


def address(process: Any) -> str:  # noqa: ANN401 - Popen
    line: str = process.stdout.readline().strip()
    assert line.startswith("http://127.0.0.1:"), line
    return line


def test_store_and_board_away_and_back(store: Store, tab: Page) -> None:
    path = Path(store.url.removeprefix("sqlite:///"))
    aside = path.with_suffix(".away")
    words = ("board", "--every", "0.2", "--port")
    away = "(p => p.hidden ? '' : p.innerText)(document.querySelector('#away'))"
    live = "document.querySelector('#live')"
    with store.running(*words, "0") as process:
        url = address(process)
        tab.open(url)
        tab.until(row("deploy/db"))
        path.rename(aside)
        assert "store does not answer" in tab.until(away)
        # Louder than that the page has no login.
        size = "parseFloat(getComputedStyle(document.querySelector('%s')).fontSize)"
        assert "No login" in tab.text(".notice")
        assert tab.value(size % "#away") > tab.value(size % ".notice")
        assert tab.value(f"{live}.innerText") == "Store away"
        # The lock is still shown, as it was seen last: no age goes on.
        before = tab.value(row("deploy/db"))
        time.sleep(0.5)
        assert tab.value(row("deploy/db")) == before
        aside.rename(path)
        tab.until(f"{away} === '' && {live}.dataset.state === 'live'")
        # With the page open, a signal ends the board at once, and with the usual code.
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, out) == (128 + signal.SIGTERM, "")
        assert err.count("\n") == 1, err
    assert "board does not answer" in tab.until(away)
    port = url.rstrip("/").rpartition(":")[2]
    with store.running(*words, port) as process:
        address(process)
        tab.until(f"{away} === ''")
        tab.until(row("deploy/db"))
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 128 + signal.SIGINT
    # The browser tells of the time when nobody answered.
    tab.open("about:blank")
    tab.until("location.href === 'about:blank'")
    tab._browser.events.clear()
