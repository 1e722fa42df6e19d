"""How a store gets its connections: by a URL, or as a user's client would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aiorwlock_remote.backends.redis.blocking import BlockingLink
from aiorwlock_remote.backends.redis.calls import Arg
from aiorwlock_remote.backends.redis.connecting import dial_url
from aiorwlock_remote.backends.redis.link import Link
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.protocol import Conversation, Wire
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.ports import Host

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.scripts import Script


class Batches(Protocol):
    """What renewals go over. Used, and closed, in the keeper's thread."""

    def run_many(
        self, batch: Sequence[tuple[Script, tuple[Arg, ...]]], timeout: float
    ) -> list[Any]:
        """Run all scripts; the answers as they came, in order.

        An exception takes the place of an answer that is an error.

        Raises:
            BackendError: it is not known which were carried out. After ``timeout``
                seconds at the latest.
        """

    def close(self) -> None:
        """Close what it opened."""


class Lines(Protocol):
    """Where connections come from.

    Whatever opens them: commands, answers and messages are our link's, over one
    connection. So their order, and what becomes of them when the connection is lost,
    is the same for all lines.
    """

    @property
    def off_loop(self) -> bool:
        """Whether batches do without the store's event loop."""

    async def dial(self, options: Options, talk: Conversation, host: Host) -> Wire:
        """As ``Dial``."""

    def batches(self, options: Options, host: Host, link: Link) -> Batches:
        """What renewals go over; ``link`` is the store's own."""


class UrlLines:
    """Connections of our own."""

    off_loop = True

    async def dial(self, options: Options, talk: Conversation, host: Host) -> Wire:
        """By the driver of the running loop."""
        return await dial_url(options, talk, host)

    def batches(self, options: Options, host: Host, link: Link) -> BlockingLink:  # noqa: ARG002 - it needs no loop
        """Over a blocking connection."""
        return BlockingLink(options, host.clock, ALL)
