"""Settings of Sphinx; `nox -s docs` builds with warnings as errors."""

from __future__ import annotations

import tomllib
from pathlib import Path

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
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"{project} {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
# The parameters of constructors that users do not call have no description.
autodoc_typehints_description_target = "documented_params"
napoleon_use_ivar = True  # else a dataclass's fields are described twice
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
