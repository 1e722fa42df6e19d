"""A connection that learns from fake Sentinels where its server is."""

from __future__ import annotations

import asyncio

from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
)
from tests.backends.redis.connection_state_machine import ConnectionSetup
from tests.backends.redis.fake_sentinel import NAME, Sentinel, Truth, Watched
from tests.backends.redis.fake_server import Line
from tests.backends.redis.fake_sockets import Net
from tests.backends.redis.virtual_time import PATIENCE, STEP

CONNECT = 4 * PATIENCE
URL = (
    f"redis+sentinel://10.2.0.1,10.2.0.2:5000,guard/{NAME}/0?command_timeout={PATIENCE}"
)
TICK = STEP / 4
SOON = 6.0
"""Seconds until we are at the primary, once a Sentinel that answers knows it."""


class SentinelSetup(ConnectionSetup):
    """From the first connection until it is closed."""

    recent = 6
    longest = CONNECT + 1.5 * PATIENCE

    def __init__(self) -> None:
        self.truth = Truth()
        super().__init__(self.truth.servers)
        self.net = Net(self.loop, self.truth.sentinels)
        self.options = options_of(parse(URL), connect_timeout=CONNECT)

    def connects(self, patience: float = 3 * CONNECT) -> None:
        """In time, unless nobody who knows can tell; then it is said why.

        Or somebody loses patience, and it is begun anew when all is well.
        """
        can, begun = self.somebody_can_tell(), self.clock.seconds
        opening = self.loop.create_task(self.opens(self.options))
        while not opening.done():
            self.all_goes_well()
            assert self.clock.seconds <= begun + CONNECT + 3 * TICK
            if self.clock.seconds > begun + patience:
                opening.cancel()
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            assert not can, error
            self.is_said(error)
        if self.link is not None:
            assert self.is_there or not can
        else:
            self.patience_ends()
            self.nothing_is_under_way()
            self.all_is_well()
            self.connects()

    def is_said(self, error: BaseException) -> None:
        assert isinstance(error, LockError | ConfigurationError)
        assert any(place in str(error) for place in (NAME, "redis", "10.", "guard"))
        if "does not speak" in str(error):
            assert {"strange", "odd"} & {each.mood for each in self.truth.sentinels}
        elif not isinstance(error, BackendUnavailable):
            assert isinstance(error, Unsupported | ConfigurationError)
            assert error.hint

    def somebody_can_tell(self) -> bool:
        """The Sentinels that are believed name the primary, and that answers, too."""
        primary = self.truth.primary
        if (
            primary.port_state != "open"
            or primary.asleep
            or primary.locked
            or primary.mood
        ):
            return False
        answers = [
            (0 if sentinel.mood == "secretive" else sentinel.view[0], sentinel.view[1])
            for sentinel in self.truth.sentinels
            if sentinel.view and self.tells(sentinel)
        ]
        latest = max((epoch for epoch, _ in answers), default=0)
        return {server for epoch, server in answers if epoch == latest} == {primary}

    def tells(self, sentinel: Sentinel) -> bool:
        found = self.net.resolver == "well" or not sentinel.is_named
        is_well = sentinel.mood in {"", "slow", "secretive"}
        return found and is_well and sentinel.port_state == "open"

    # What the network and the servers do.

    def port_state_of(self, options: Options) -> str:
        return self.truth.at((options.host, options.port)).port_state

    def server_of(self, options: Options) -> Watched:
        return self.truth.at((options.host, options.port))

    def server_behind(self, line: Line) -> Watched:
        (server,) = (each for each in self.truth.servers if line in each.lines)
        return server

    def shut(self, line: Line, port_state: str) -> None:
        self.server_behind(line).port_state = port_state

    def fails_over(self, to: Watched, old: str) -> None:
        """What becomes of the old primary; who tells of it is another thing."""
        before = self.truth.primary
        self.truth.fail_over(to)
        if before is to:
            return
        if old == "dies":
            before.restart()
            before.port_state = "refused"
        elif old == "sleeps":
            before.asleep = True
        elif old != "believes":
            before.obeys(kills=old == "is informed")

    def all_is_well(self) -> None:
        """At the primary, with one of the Sentinels, and the network."""
        primary = self.truth.primary
        primary.port_state, primary.mood = "open", ""
        primary.asleep = primary.locked = False
        for server in self.truth.servers:
            if server is not primary:
                server.obeys(kills=False)
        knows = self.truth.sentinels[len(self.asked) % len(self.truth.sentinels)]
        knows.learns()
        knows.is_well()
        if knows.is_named:
            self.the_resolver_is("well")

    def the_resolver_is(self, state: str) -> None:
        self.net.resolver = state
        self.net.threads.changed()

    def all_forget_the_name(self) -> None:
        """And are asked for it, once there is a connection to be lost."""
        for sentinel in self.truth.sentinels:
            sentinel.view = None
        self.truth.sentinels[0].is_well()
        for line in self.lines[-1:]:
            line.cut()

    def everything_goes_its_way(self) -> None:
        if self.lines and not self.server_behind(self.lines[-1]).asleep:
            super().everything_goes_its_way()
        for sentinel in self.truth.sentinels:
            if sentinel.mood == "slow":
                sentinel.says_on()

    def we_are_misled(self, to: Watched) -> None:
        """To a replica that takes itself for the primary, and so do the Sentinels."""
        truth = self.truth
        for sentinel in truth.sentinels:
            sentinel.view = truth.epoch, to
        truth.sentinels[0].is_well()
        to.port_state, to.mood, truth.primary.asleep = "open", "", True
        self.lines[-1].cut()
        for _ in range(4):
            self.all_goes_well()
        for sentinel in truth.sentinels:
            sentinel.learns()
        truth.primary.asleep = False
        if to is not truth.primary:
            to.obeys(kills=True)

    def it_flaps(self) -> None:
        """Whoever has just been greeted is cut off, for long; the pauses grow."""
        greeted = 0
        for _ in range(80):
            self.everything_goes_its_way()
            talk = self.the_link._protocol
            if talk is not None:
                greeted += 1
                self.line_of(talk).cut()
            self.clock.seconds += TICK
            self.loop.turn()
        assert greeted <= 14

    # What must be the case.

    @property
    def is_there(self) -> bool:
        """At the primary."""
        talk = self.the_link._protocol
        line = None if talk is None else self.line_of(talk)
        return line is not None and line.open and line in self.truth.primary.lines

    def comes_to_rest(self) -> None:
        self.all_is_well()
        self.ask([b"a"])  # who has nothing to ask does not notice
        since = self.clock.seconds
        while not (self.is_there and self.asked[-1].pending.done()):
            assert self.clock.seconds < since + SOON
            self.all_goes_well()
        super().comes_to_rest()
        assert self.is_there
        assert sum(line.open for line in self.lines) == 1

    def nothing_is_under_way(self) -> None:
        assert not any(line.open for line in self.lines)
        assert not self.net.plugs
        if self.net.resolver != "silent":
            assert not self.net.threads.waiting
        timers = self.loop._scheduled  # type: ignore[attr-defined]
        assert all(timer.cancelled() for timer in timers)
        assert not asyncio.all_tasks(self.loop)

    def ends(self) -> None:
        self.the_resolver_is("well")
        super().ends()
        self.nothing_is_under_way()

    def is_left(self) -> None:
        self.net.is_over()
        super().is_left()
