"""Fixtures: one etcd member for all workers, others for tests that hurt theirs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.servers.certificates import Certificates
from tests.servers.etcd import Etcd, EtcdRing, etcdctl, is_healthy, prepare
from tests.servers.process import IP, end_of, until
from tests.servers.shared import shared, shared_folder

StartEtcd = Callable[..., Etcd]
StartEtcdRing = Callable[..., EtcdRing]


@dataclass(frozen=True, slots=True)
class SharedEtcd:
    """The member of this pytest run: leave its settings alone, and never stop it."""

    port: int

    @property
    def address(self) -> str:
        return f"{IP}:{self.port}"

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    def ctl(self, *args: str, stdin: str | None = None) -> str:
        """Return what ``etcdctl`` prints."""
        return etcdctl(self.address, *args, stdin=stdin)


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEtcd]:
    """Shared by all workers: use keys of your own (see ``etcd_url``)."""
    folder = shared_folder(tmp_path_factory, "shared-etcd")
    with shared(folder, prepare) as facts:
        server = SharedEtcd(facts["port"])
        try:
            until(lambda: is_healthy(server.address), "the shared etcd answers")
        except TimeoutError:
            pytest.fail(f"etcd does not start: {end_of(folder / 'log')}")
        yield server


@pytest.fixture
def etcd_url(etcd_server: SharedEtcd) -> str:
    """A folder of keys for one test, in which there are none yet."""
    return f"{etcd_server.url}/t{secrets.token_hex(6)}"


@pytest.fixture
def start_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEtcd]:
    """Starts one to be broken: ``start_etcd(config=…, certificates=…)``."""
    members: list[Etcd] = []

    def start(
        *,
        config: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
    ) -> Etcd:
        folder = tmp_path_factory.mktemp("etcd")
        members.append(Etcd(folder, config=config, certificates=certificates))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.fixture
def start_etcd_ring(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartEtcdRing]:
    """Starts three members to be broken: ``start_etcd_ring(config=…)``."""
    rings: list[EtcdRing] = []

    def start(*, config: Mapping[str, str] | None = None) -> EtcdRing:
        rings.append(EtcdRing(tmp_path_factory.mktemp("etcd-ring"), config))
        return rings[-1]

    yield start
    for ring in rings:
        ring.close()
