"""The check of the built site, which `nox -s docs` runs, finds what is wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from docs.conf import SEARCH_WORDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def check_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # The stemmer comes with Sphinx, which only the session of the docs installs.
    monkeypatch.setitem(sys.modules, "snowballstemmer", ModuleType("snowballstemmer"))
    spec = importlib.util.spec_from_file_location(
        "check_site", ROOT / "docs/check_site.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_site", module)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_texts(check_site: ModuleType) -> None:
    assert list(check_site.broken_references(ROOT)) == []


def test_a_broken_link_of_a_text_is_found(
    check_site: ModuleType, tmp_path: Path
) -> None:
    for name in ("CONTRIBUTING.md", "examples/README.md", "docs/page.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# A `title`, of two\n")
    text = "[a](docs/page.md#a-title-of-two) [b](docs/page.md#no) [c](no.md)\n"
    (tmp_path / "README.md").write_text(text)
    assert list(check_site.broken_references(tmp_path)) == [
        "README.md: docs/page.md#no",
        "README.md: no.md",
    ]


def test_a_broken_link_of_the_site_is_found(
    check_site: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "there.html").write_text('<h1 id="top">x</h1>')
    links = ("there.html#top", "there.html#no", "no.html", "https://example.org/")
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "index.html").write_text(page)
    assert list(check_site.broken_links(tmp_path)) == [
        "index.html: there.html#no",
        "index.html: no.html",
    ]


def test_a_search_without_its_page_is_found(
    check_site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {
        "docnames": ["index", "howto/deploy"],
        "titles": ["Start", "Containers"],
        "alltitles": {"Containers": [[1, None]]},
        "indexentries": {"docker swarm": [[0, "", False]], "swarm": [[1, "", True]]},
        "objects": {"shop": [[0, 0, 1, "", "swarm"]]},
        "terms": {"docker": 1},
        "titleterms": {"contain": 1},
    }
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    stemmer = ModuleType("snowballstemmer")
    stemmer.stemmer = lambda _: type("Stemmer", (), {"stemWord": str.lower})  # type: ignore[attr-defined]
    monkeypatch.setattr(check_site, "snowballstemmer", stemmer)
    searches = {"docker": "howto/deploy", "celery": "howto/sync"}
    monkeypatch.setattr(check_site, "SEARCHES", searches)
    first = {"swarm": "howto/deploy", "swar": "index"}
    monkeypatch.setattr(check_site, "FIRST", first)
    assert list(check_site.failed_searches(tmp_path)) == [
        "search for 'swar': index is not among howto/deploy",
        "search for 'celery': howto/sync is not among ",
    ]


def test_what_must_be_found_first_is_a_word_of_its_page(check_site: ModuleType) -> None:
    """`nox -s docs` searches in the built site; this one needs no Sphinx."""
    assert check_site.FIRST
    for query, page in check_site.FIRST.items():
        assert query in SEARCH_WORDS[page]
