"""What renews grants, in the lease keeper's threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aiorwlock_remote._util.callback_thread import CallbackThread
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable

if TYPE_CHECKING:
    from aiorwlock_remote.ports import StoreBase


@dataclass(frozen=True, slots=True)
class Renewal:
    """Request to renew a grant. ``lease``: microseconds; None: the grant has no end."""

    resource: Resource
    ticket: str = field(repr=False)
    lease: int | None


class RenewerBase:
    """Base of what renews grants, blocking, over connections of its own.

    Used by the lease keeper, in one thread at a time for each ``lane``.
    """

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all grants in ``batch``, within ``timeout`` seconds.

        Returns outcomes in the order of ``batch``: an exception for a failed renewal.
        Raises ``BackendError`` if it is not known which grants were renewed.
        """
        raise NotImplementedError

    def lane(self, resource: Resource) -> Hashable:  # noqa: ARG002 - of a renewer with lanes
        """Return a key that names the connection over which the resource is renewed.

        Resources with equal keys, None included, are renewed one after the other, those
        with other keys at the same time. So a server that does not reply delays only
        the renewals that it serves. By default: None.
        """
        return None

    def give_up(self) -> None:
        """Make present and later renewals fail soon; callable from any thread.

        Called when the ``Locks`` is closed, so that a silent server does not delay
        that. By default, closing waits for the renewals under way.
        """

    def close(self) -> None:
        """Close what the renewer opened."""


class StepRenewer(RenewerBase):
    """Renewer that sends its renewals as steps of the store, in its event loop."""

    def __init__(self, store: StoreBase) -> None:
        self._store = store
        self._thread = CallbackThread(store.event_loop.clock)

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        outcomes: dict[int, Grant | NotHeld | Exception] = {}
        until = self._thread.clock.now() + timeout
        self._store.event_loop.call_soon(self._send, batch, outcomes)
        self._thread.run(lambda: len(outcomes) == len(batch), until)
        late = BackendUnavailable(what="the renewal was not answered in time")
        return [outcomes.get(number, late) for number in range(len(batch))]

    def give_up(self) -> None:
        self._thread.stop()

    def _send(
        self,
        batch: Sequence[Renewal],
        outcomes: dict[int, Grant | NotHeld | Exception],
    ) -> None:
        for number, item in enumerate(batch):
            command = Renew(((item.ticket, item.lease),))
            note = partial(self._thread.call_soon, outcomes.__setitem__, number)
            try:
                reply = self._store.step(item.resource, command)
            except Exception as exc:  # noqa: BLE001 - handed to the lease keeper
                note(exc)
            else:
                reply.add_done_callback(partial(_note_outcome, note))


def _note_outcome(note: Callable[[object], object], reply: Pending[Reply]) -> None:
    if reply.error is not None:
        note(reply.error)
        return
    renewed = reply.result()
    assert isinstance(renewed, Renewed)
    note(renewed.outcomes[0])
