"""What is to be cancelled when a grant is lost. Lives in the loop's thread."""

from __future__ import annotations

import anyio


class LossScopes:
    """The scopes that one grant protects."""

    __slots__ = ("_happened", "_scopes")

    def __init__(self) -> None:
        self._scopes: list[anyio.CancelScope] = []
        self._happened = False

    def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel this scope on loss; at once if it has happened."""
        self._scopes.append(scope)
        if self._happened:
            scope.cancel()

    def unwatch(self, scope: anyio.CancelScope) -> None:
        """Not any more."""
        if scope in self._scopes:
            self._scopes.remove(scope)

    def happened(self) -> None:
        """Cancel them all."""
        self._happened = True
        for scope in self._scopes:
            scope.cancel()

    def pass_on(self, other: LossScopes) -> None:
        """Another grant protects the same scopes from now on."""
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            other.watch(scope)
