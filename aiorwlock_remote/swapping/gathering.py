"""The keeper's desk: what is asked together goes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.table_rows import Found
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.swapping.tables import Values

Send = Callable[[str, Sequence[Values]], list[Pending[Found]]]
Soon = Callable[[Callable[[], object]], object]


class Gathering:
    """A ``Desk`` that hands over together what was asked for. Belongs to one thread."""

    def __init__(self, send: Send, soon: Soon) -> None:
        """``send``: takes several of one kind. ``soon``: once all have asked."""
        self._send = send
        self._soon = soon
        self._asked: dict[str, list[tuple[Values, Pending[Found]]]] = {}

    def ask(self, name: str, values: Values) -> Pending[Found]:
        """As ``Desk.ask``."""
        pending: Pending[Found] = Pending()
        if not self._asked:
            self._soon(self._go)
        self._asked.setdefault(name, []).append((values, pending))
        return pending

    def _go(self) -> None:
        asked, self._asked = self._asked, {}
        for name, entries in asked.items():
            answers = self._send(name, [values for values, _ in entries])
            alone = len(entries) == 1
            for (values, pending), answer in zip(entries, answers, strict=True):
                answer.then(partial(self._answered, name, values, pending, alone))

    def _answered(
        self,
        name: str,
        values: Values,
        pending: Pending[Found],
        alone: bool,  # noqa: FBT001 - bound by ``partial``
        answer: Pending[Found],
    ) -> None:
        error = answer.error
        if error is None:
            pending.resolve(answer.result())
        elif alone or isinstance(error, BackendUnavailable):
            pending.fail(error)
        else:  # one damaged record must not cost the others their leases
            again = self._send(name, [values])[0]
            again.then(partial(self._answered, name, values, pending, True))  # noqa: FBT003
