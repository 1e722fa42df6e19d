"""URL scheme → backend. Loaded when used; a missing extra is named in the error.

Third parties register under the entry point group ``aiorwlock_remote.backends``: the
scheme is the name, the value ``module:open_store``.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import cast

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import Opener

GROUP = "aiorwlock_remote.backends"

_BUILT_IN = {
    "memory": "aiorwlock_remote.backends.memory:open_store",
    "file": "aiorwlock_remote.backends.files.store:open_store",
    "sqlite": "aiorwlock_remote.backends.sqlite.store:open_store",
    "redis": "aiorwlock_remote.backends.redis.store:open_store",
    "rediss": "aiorwlock_remote.backends.redis.store:open_store",
    "redis+cluster": "aiorwlock_remote.backends.redis.store:open_store",
    "redis+sentinel": "aiorwlock_remote.backends.redis.store:open_store",
    "rediss+cluster": "aiorwlock_remote.backends.redis.store:open_store",
    "rediss+sentinel": "aiorwlock_remote.backends.redis.store:open_store",
    "unix": "aiorwlock_remote.backends.redis.store:open_store",
    "oracle": "aiorwlock_remote.backends.oracle.store:open_store",
    "cassandra": "aiorwlock_remote.backends.cassandra.store:open_store",
    "postgresql": "aiorwlock_remote.backends.postgresql.store:open_store",
    "mariadb": "aiorwlock_remote.backends.mariadb.store:open_store",
    "mysql": "aiorwlock_remote.backends.mariadb.store:open_store",
}

_ALSO = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}
"""What others call it."""

_EXTRAS = {"rediss": "redis", "unix": "redis", "mysql": "mariadb"}


def find(scheme: str) -> Opener:
    """The backend of a URL scheme.

    Raises:
        ConfigurationError: nobody registered the scheme, two did, or its driver is not
            installed or cannot be imported.
    """
    target = _BUILT_IN.get(scheme) or _foreign(scheme)
    module, _, name = target.partition(":")
    try:
        return cast("Opener", getattr(import_module(module), name))
    except ModuleNotFoundError as exc:
        ours = f"pip install 'aiorwlock-remote[{_extra(scheme)}]'"
        raise ConfigurationError(
            what=f"{scheme}:// needs {exc.name or module}, which is not installed",
            hint=ours if scheme in _BUILT_IN else "",
        ) from exc
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            what=f"{scheme}://: {target} cannot be imported: {exc}"
        ) from exc


def _extra(scheme: str) -> str:
    family = scheme.partition("+")[0]
    return _EXTRAS.get(family, family)


def schemes() -> list[str]:
    """Every scheme that can be used, sorted."""
    return sorted({*_BUILT_IN, *_registered()})


def _foreign(scheme: str) -> str:
    found = _registered().get(scheme, set())
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise ConfigurationError(
            what=f"{scheme}:// is claimed by several packages: {sorted(found)}"
        )
    raise ConfigurationError(what=f"unknown store {scheme}://", hint=_hint(scheme))


def _hint(scheme: str) -> str:
    known = schemes()
    family = scheme.partition("+")[0]  # SQLAlchemy's name a driver after the plus
    meant = _ALSO.get(family, family)
    like = [meant] if meant in known else get_close_matches(scheme, known, n=1)
    if like:
        return f"did you mean {like[0]}://?"
    return f"known: {', '.join(known)}"


def _registered() -> dict[str, set[str]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, rarely needed

    found: dict[str, set[str]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, set()).add(point.value)
    return found
