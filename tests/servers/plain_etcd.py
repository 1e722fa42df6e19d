"""Programs that know the published mutex record, and not this library: etcdctl."""

from __future__ import annotations

import time

from aiorwlock_remote.testing.conformance import ForeignClient, Name
from tests.servers.fix_etcd import SharedEtcd

TAKE = """\
create("{key}") = "0"

put {key} "{value}"


"""
FREE = """\
value("{key}") = "{value}"

del {key}


"""
"""What ``etcdctl txn`` reads: conditions, what to do then, and else."""


class PlainEtcd(ForeignClient):
    """The transactions of ``docs/stores/etcd.md``, by ``etcdctl``."""

    def __init__(self, server: SharedEtcd, folder: str, prefix: str) -> None:
        self._ctl = server.ctl
        self._folder = folder
        self._prefix = prefix

    def take(self, name: Name, ticket: str) -> bool:
        return self._done(TAKE, name, f"{ticket},{int(time.time())}")

    def put(self, name: Name, ticket: str) -> None:
        self._ctl("put", self._key(name), f"{ticket},{int(time.time())}")

    def free(self, name: Name, ticket: str) -> bool:
        value = self._value(name)
        mine = value.rpartition(",")[0] == ticket
        return mine and self._done(FREE, name, value)

    def clean(self, name: Name) -> None:
        self._ctl("del", f"{self._key(name)},doorman")

    def read(self, name: Name) -> str | None:
        return self._value(name).rpartition(",")[0] or None

    def _value(self, name: Name) -> str:
        found = self._ctl("get", "--print-value-only", self._key(name))
        return found.rstrip("\n")

    def _done(self, statement: str, name: Name, value: str) -> bool:
        said = self._ctl(
            "txn", stdin=statement.format(key=self._key(name), value=value)
        )
        return said.startswith("SUCCESS")

    def _key(self, name: Name) -> str:
        return f"{self._folder}/{self._prefix}{name[0]},{name[1]}"
