"""How the API reference shows signatures."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest

from aiorwlock_remote import Locks, Mutex, connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from docs.conf import IN_REPOSITORY, NOT_TAKEN, link_repository_files, show_signature
from tests.docs.test_tables import DOCS, code, table_of


def shown(what: str, name: str, thing: Any) -> str:  # noqa: ANN401 - what Sphinx has
    """As Sphinx asks; it writes no annotations into signatures."""
    parameters = inspect.signature(thing).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    signature = str(inspect.Signature(bare))
    result = show_signature(None, what, name, thing, None, signature, None)  # type: ignore[arg-type]
    assert result is not None
    return result[0] or ""


def test_classes_made_by_the_library_show_no_arguments() -> None:
    assert shown("class", "aiorwlock_remote.Locks", Locks) == ""
    assert shown("class", "aiorwlock_remote.Mutex", Mutex) == ""


def test_classes_made_by_users_show_their_arguments() -> None:
    assert "call_timeout=5.0" in shown(
        "class", "x.PostgresqlBackend", PostgresqlBackend
    )


def test_options_stand_in_the_signature() -> None:
    assert "lease=30.0, policy='fair'" in shown("function", "x.connect", connect)
    mutex = shown("method", "x.Locks.mutex", Locks.mutex)
    assert mutex.startswith("(resource_type, resource_id, *, lease=…, policy=…, fair=…")
    assert "fair" not in shown("method", "x.Locks.rwlock", Locks.rwlock)


def test_options_that_are_refused_are_those_of_the_table() -> None:
    head = "| option | `mutex` "
    for option, *taken in table_of(DOCS / "reference/options.md", head):
        for lock, cell in zip(
            ("rwlock", "semaphore", "leader"), taken[1:], strict=True
        ):
            refused = code(option) in NOT_TAKEN[lock]
            assert refused == (cell != "yes"), (option, lock)


class Node(dict[str, Any]):
    """A node of a page, as far as the settings look at one."""

    def __init__(self, *texts: str, **attributes: Any) -> None:  # noqa: ANN401
        super().__init__(attributes)
        self.children: list[Any] = [text for text in texts if text]

    def __iadd__(self, children: list[Any]) -> Self:
        self.children += children
        return self

    def findall(self, kind: type[Node]) -> list[Node]:
        return [child for child in self.children if isinstance(child, kind)]

    def replace_self(self, node: Node) -> None:
        self["replaced_by"] = node


class Link(Node):
    """A link to a page."""


def test_a_link_to_a_page_that_is_not_on_the_site_is_a_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addnodes = ModuleType("addnodes")
    addnodes.pending_xref = Link  # type: ignore[attr-defined]
    addnodes.download_reference = Node  # type: ignore[attr-defined]
    sphinx = ModuleType("sphinx")
    sphinx.addnodes = addnodes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sphinx", sphinx)
    names = "architecture", "evidence/index", "howto/web"
    links = [Link(name, refdomain="doc", reftarget=name) for name in names]
    app: Any = SimpleNamespace(env=SimpleNamespace(docname="tested"))
    page = Node()
    page += links
    link_repository_files(app, page)
    inside, evidence = (link["replaced_by"] for link in links[:2])
    assert inside["reftarget"] == "/architecture.md"
    assert inside.children == ["architecture"]
    assert evidence["reftarget"] == "/evidence/index.md"
    assert "replaced_by" not in links[2]


def test_pages_that_are_not_on_the_site_exist() -> None:
    places = [
        DOCS / (name if name[-1] == "/" else f"{name}.md") for name in IN_REPOSITORY
    ]
    assert all(place.exists() for place in places)
