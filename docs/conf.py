"""Settings of Sphinx; `nox -s docs` builds with warnings as errors."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiorwlock_remote import OptionArgs
from aiorwlock_remote.integrations.board.site import BoardArgs
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.recipe_factories import OccupancyArgs
from aiorwlock_remote.recipes import OnceArgs

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_project = tomllib.loads(
    Path(__file__).parent.with_name("pyproject.toml").read_text(encoding="utf-8")
)["project"]

project = _project["name"]
author = f"The {project} developers"
copyright = author  # noqa: A001 (Sphinx wants this name)
version = release = _project["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # Args and Raises in docstrings
]
IN_REPOSITORY = ("architecture", "benchmarks", "evidence/")
"""Pages for people who judge or change the library; a link to one is a download."""
exclude_patterns = [
    "_build",
    "**/*.inc.md",  # parts of pages
    *(f"{name}**" if name.endswith("/") else f"{name}.md" for name in IN_REPOSITORY),
]

SEARCH_WORDS = {
    "howto/command-line": ("break a lock", "break", "force release"),
    "howto/sync": ("celery",),
    "howto/upgrades": ("upgrade", "rolling", "rolling upgrade", "migrate"),
    "reference/options": ("timeout", "lease", "options"),
}
"""What is typed into the search, by the page that shall come first. Other pages have
these words in their titles, or methods in their names."""

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
# The parameters of constructors that users do not call have no description.
autodoc_typehints_description_target = "documented_params"
napoleon_use_ivar = True  # else a dataclass's fields are described twice
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Only these are made by a call of their class. The arguments of the others are for the
# library, which hands out the objects.
MADE_BY_USERS = {
    "CassandraBackend",
    "FencedFile",
    "FencedTable",
    "MariadbBackend",
    "MysqlBackend",
    "OracleBackend",
    "OtelObserver",
    "PostgresqlBackend",
    "PrometheusObserver",
    "RedisBackend",
    "RowLockStatements",
}
KEYWORDS = {
    "OptionArgs": OptionArgs,
    "OnceArgs": OnceArgs,
    "OccupancyArgs": OccupancyArgs,
    "BoardArgs": BoardArgs,
}
NOT_TAKEN = {
    "rwlock": {"fair"},
    "set_rwlock": {"fair"},
    "semaphore": {"fair", "policy"},
    "leader": {"on_lost"},
}
"""Options that these methods refuse; tests/docs/test_tables.py tries."""


def link_repository_files(
    app: Sphinx,
    document: Any,  # noqa: ANN401 - docutils has no types
) -> None:
    """Turn links to pages that are not on the site into downloads of their files."""
    from sphinx import addnodes  # noqa: PLC0415 - tests read this file without Sphinx

    for link in list(document.findall(addnodes.pending_xref)):
        page = link["reftarget"]
        if link["refdomain"] != "doc" or not page.startswith(IN_REPOSITORY):
            continue
        file = addnodes.download_reference(
            "", "", refdoc=app.env.docname, reftarget=f"/{page}.md"
        )
        file += link.children
        link.replace_self(file)


def add_search_words(
    app: Sphinx,
    document: Any,  # noqa: ANN401 - docutils has no types
) -> None:
    """Add main entries of the index: the search shows their pages before all others."""
    from sphinx import addnodes  # noqa: PLC0415 - tests read this file without Sphinx

    words = SEARCH_WORDS.get(app.env.docname, ())
    entries = [("single", word, "", "main", None) for word in words]
    if entries:
        document[0].insert(1, addnodes.index("", entries=entries))


def show_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:
    """Leave out what only the library passes, and list the options by their names."""
    del app, options
    last = name.rpartition(".")[2]
    if not signature:
        return None
    if what == "class" and last not in MADE_BY_USERS:
        return "", None
    if what in {"function", "method"} and callable(obj):
        signature = with_options(last, obj, signature)
    # The default of Prometheus is an object: its address says nothing.
    return re.sub(r"<[^<>]+ object>", "…", signature), returns


def with_options(name: str, function: object, signature: str) -> str:
    """Return the signature with each option in place of ``**options``."""
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if parameter.kind is parameter.VAR_KEYWORD and found:
            names = [
                key
                for key in KEYWORDS[found[1]].__annotations__
                if key not in NOT_TAKEN.get(name, ())
            ]
            star = "" if "*, " in signature else "*, "
            words = ", ".join(_with_default(key, name) for key in names)
            signature = signature.replace(f"**{parameter.name}", star + words)
    return signature


def _with_default(option: str, function: str) -> str:
    # A lock takes what `connect` was told, and an acquire what the lock was.
    if function == "connect":
        return f"{option}={getattr(Options(), option)!r}"
    return f"{option}=…"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", show_signature)
    # Sphinx collects the downloads of a page with priority 500.
    app.connect("doctree-read", link_repository_files, priority=400)
    app.connect("doctree-read", add_search_words)
