"""Comments of the package name tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changed_copy import ROOT
from tests.citations import (
    PACKAGE,
    citations,
    cited,
    files_with,
    is_there,
    misplaced,
)

NOT_OURS = {"test_request_context"}
"""Methods of other libraries."""
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if cited(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_test_that_is_named_is_there(path: Path) -> None:
    assert [name for name in sorted(cited(path) - NOT_OURS) if not is_there(name)] == []
    assert misplaced(path) == []


def test_a_comment_guards_the_statement_behind_it(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "def f(x):\n"
        "    # Not twice (test_twice, test_f.py: test_a_name_that_goes\n"
        "    # _on).\n"
        "    if x:\n"
        "        return 1\n"
        "    # Of the whole (test_whole).\n"
        "    with x:\n"
        "        pass\n"
        "    # No test.\n"
        "    return 2\n"
    )
    first, second = citations(module)
    assert first.names == ("test_twice", "test_f.py", "test_a_name_that_goes_on")
    assert (first.first, first.last) == (4, 5)
    assert (second.names, second.first) == (("test_whole",), 0)


def test_a_statement_that_gives_a_name_its_first_value(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "class C:\n"
        "    def __init__(self):\n"
        "        # One (test_one).\n"
        "        self.a, self.b = 1, 2\n"
        "    def f(self):\n"
        "        # Two (test_two).\n"
        "        self.a = 3\n"
        "        # Three (test_three).\n"
        "        b = 4\n"
        "        # Four (test_four).\n"
        "        self.a[5] = b\n"
        "        # Five (test_five).\n"
        "        b = 6\n"
    )
    binds = [one.binds for one in citations(module)]
    assert binds == [True, False, True, False, False]


def test_where_a_test_is() -> None:
    assert files_with("test_where_a_test_is") == ["tests/test_citations.py"]
    assert files_with("test_citations.py") == ["tests/test_citations.py"]
    assert "tests/conformance/test_memory.py" in files_with("test_a_killed_holder")
    assert files_with("test_a_writer_may_delete_the_row") == [
        "tests/integrations/test_django_row_lock.py",
        "tests/integrations/test_sqlalchemy_row_lock.py",
        "tests/recipes/test_row_lock.py",
    ]
    assert not is_there("test_that_nobody_has_written_yet_" + "x")
    assert not is_there("test_cit" + "ations_of_nobody.py")


def test_a_test_that_is_elsewhere(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "# One (test_citations.py: test_where_a_test_is), two (``test_citations.py``:\n"
        "# ``test_a_killed_holder``), three (test_citations.py: test_a_test_that\n"
        "#     _is_elsewhere; test_memory.py, test_client.py: test_nobody_wrote).\n"
    )
    assert misplaced(module) == [
        "test_citations.py: test_a_killed_holder",
        "test_client.py: test_nobody_wrote",
    ]
