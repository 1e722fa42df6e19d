"""``ExcInfo``: how a block ended."""

from __future__ import annotations

from types import TracebackType

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
"""What Python passes to ``__exit__`` and ``__aexit__``: the type, the exception and the
traceback of the error that ends the block; three times None if no error does.

Written ``*exc_info: *ExcInfo``, it is passed on whole.
"""
