"""Check the built site: `python docs/check_site.py docs/_build/html`.

Every link inside the site and in README, CONTRIBUTING and the examples leads to a file
and an anchor that exist, and the site's search finds the pages that people look for.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import snowballstemmer

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "CONTRIBUTING.md", "examples/README.md", "docs")

FIRST: Mapping[str, str] = {
    "timeout": "reference/options",
    "break a lock": "howto/command-line",
    "upgrade": "howto/upgrades",
    "rolling": "howto/upgrades",
}
"""What is typed into the search, and the page that has to be the first."""

SEARCHES: Mapping[str, str] = {
    "leader election": "howto/leader-election",
    "distributed lock": "index",
    "semaphore": "howto/semaphore",
    "docker": "howto/deploy",
    "kubernetes": "howto/deploy",
    "celery": "howto/sync",
    "django": "howto/django",
    "lease": "reference/options",
    "idempotency": "howto/patterns",
    "double payment": "howto/patterns",
    "cron": "howto/once",
    "multiprocess": "stores/sqlite",
    "TestClient": "howto/testing",
    "structlog": "howto/logging",
    "redlock": "howto/from/redlock",
    "shedlock": "howto/from/shedlock",
    "SIGTERM": "howto/deploy",
    "rolling upgrade": "howto/upgrades",
    "unknown version": "howto/upgrades",
}
"""What is typed into the search, and the page that has to be among the first."""

LOOKED_AT = 5
"""So many results are looked at before one types something else."""


# ----------------------------------------------------------------- links of the site


@dataclass
class _Page(HTMLParser):
    # The links and anchors of one page of the site.

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag links to, and by which name it can be linked to."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            if name == "href" or (tag in {"img", "script"} and name == "src"):
                self.links.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield each link of a page to a file or an anchor that is not in the site."""
    pages: dict[Path, _Page] = {}
    for path in site.rglob("*.html"):
        page = pages[path.resolve()] = _Page()
        page.feed(path.read_text("utf-8"))
    for path, page in pages.items():
        for link in page.links:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (
                (path.parent / unquote(where.path)).resolve() if where.path else path
            )
            there = pages.get(target)
            anchor = unquote(where.fragment)
            # Of pages that Sphinx makes of code, an anchor may be made by a script.
            found = target.exists() if there is None else True
            if not found or (anchor and there and anchor not in there.anchors):
                yield f"{path.relative_to(site.resolve())}: {link}"


# ----------------------------------------------------------------- links of the texts

_FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a text as GitHub makes them of its headings."""
    bare = _FENCED.sub("", text)
    slugs = {_slug(heading) for heading in _HEADING.findall(bare)}
    return slugs | set(_TARGET.findall(bare))


def _slug(heading: str) -> str:
    shown = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def broken_references(root: Path) -> Iterator[str]:
    """Yield each relative link of a text to a file or a heading that does not exist."""
    for name in TEXTS:
        place = root / name
        files = sorted(place.rglob("*.md")) if place.is_dir() else [place]
        for path in files:
            if "_build" not in path.parts:
                yield from _broken_references(path, root)


def _broken_references(path: Path, root: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    for found in _LINK.finditer(_FENCED.sub("", text)):
        link = found[1] or found[2]
        where = urlsplit(link)
        if where.scheme or where.netloc:
            continue
        target = path.parent / unquote(where.path) if where.path else path
        known = target.exists() and (
            not where.fragment
            or target.suffix != ".md"
            or where.fragment in anchors_of(target.read_text("utf-8"))
        )
        if not known:
            yield f"{path.relative_to(root)}: {link}"


# ----------------------------------------------------------------- the search

TITLE, PARTIAL_TITLE, TERM, PARTIAL_TERM, ENTRY = 15, 7, 5, 2, 100
OBJECT, PARTIAL_OBJECT, PRIORITIES = 11, 6, {0: 15, 1: 5, 2: -5}
"""Weights of the site's search, as in Sphinx' searchtools.js."""


class SearchIndex:
    """The index of the site's search; ``results`` ranks as the site's script does."""

    def __init__(self, site: Path) -> None:
        text = (site / "searchindex.js").read_text("utf-8")
        self._index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
        self._stem = snowballstemmer.stemmer("english").stemWord

    def results(self, query: str) -> list[str]:
        """Return the names of the pages found, best first."""
        scores: dict[int, float] = {}
        found = *self._titles(query), *self._objects(query), *self._terms(query)
        for document, score in found:
            scores[document] = max(score, scores.get(document, 0))
        names, titles = self._index["docnames"], self._index["titles"]
        ranked = sorted(scores, key=lambda number: (-scores[number], titles[number]))
        return [names[number] for number in ranked]

    def _titles(self, query: str) -> Iterator[tuple[int, float]]:
        # Titles of pages and sections that contain the query, and are half as long.
        for title, places in self._index["alltitles"].items():
            if self._fits(query, title):
                for document, _ in places:
                    own = self._index["titles"][document] == title
                    yield document, round(TITLE * len(query) / len(title)) + own
        for entry, places in self._index["indexentries"].items():
            if self._fits(query, entry):
                for document, _, is_main in places:
                    # The site shows all others behind the results of every other kind.
                    score = round(ENTRY * len(query) / len(entry))
                    yield document, score if is_main else 0

    def _objects(self, query: str) -> Iterator[tuple[int, float]]:
        # Classes, functions and their methods whose name is, or contains, the query.
        for prefix, names in self._index["objects"].items():
            for document, _, priority, _, name in names:
                last = f"{prefix}.{name}".lower().rpartition(".")[2]
                if query.lower() in last:
                    exact = last == query.lower()
                    score = OBJECT if exact else PARTIAL_OBJECT
                    yield document, score + PRIORITIES.get(priority, 0)

    @staticmethod
    def _fits(query: str, text: str) -> bool:
        return query.lower() in text.lower() and len(query) >= len(text) / 2

    def _terms(self, query: str) -> Iterator[tuple[int, float]]:
        words = [self._stem(word) for word in query.lower().split()]
        found = [self._scores(word) for word in words]
        for document in set.intersection(*map(set, found)):
            yield document, max(scores[document] for scores in found)

    def _scores(self, word: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for kind, whole, part in (
            ("terms", TERM, PARTIAL_TERM),
            ("titleterms", TITLE, PARTIAL_TITLE),
        ):
            terms = self._index[kind]
            exact = [(word, whole)] if word in terms else []
            partial = [(term, part) for term in terms if word in term]
            for term, score in exact or partial:
                documents = terms[term]
                for number in [documents] if isinstance(documents, int) else documents:
                    scores[number] = max(score, scores.get(number, 0))
        return scores


def failed_searches(site: Path) -> Iterator[str]:
    """Yield each search that does not lead to its page."""
    index = SearchIndex(site)
    for pages, number in ((FIRST, 1), (SEARCHES, LOOKED_AT)):
        for query, page in pages.items():
            found = index.results(query)[:number]
            if page not in found:
                yield f"search for {query!r}: {page} is not among {', '.join(found)}"


if __name__ == "__main__":
    site = Path(sys.argv[1])
    complaints = [
        *(f"broken link in {text}" for text in broken_links(site)),
        *(f"broken link in {text}" for text in broken_references(ROOT)),
        *failed_searches(site),
    ]
    sys.exit("\n".join(complaints) or 0)
