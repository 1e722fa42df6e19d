"""The tests that docs/howto/testing.md shows are run, by each runner that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.fix_blocks import blocks

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "testing.md"
RUNNERS = {
    "pytest.mark.anyio": ("-p", "no:asyncio"),
    "pytest.mark.asyncio": ("-o", "asyncio_default_fixture_loop_scope=function"),
}


WEB, SYNC = "# test_web.py\n", "# test_report.py\n"


def python_blocks() -> list[str]:
    return [
        block.text
        for block in blocks(PAGE.read_text("utf-8"))
        if block.language == "python"
    ]


def module() -> tuple[str, str]:
    """The page's conftest, and its tests; not what awaits outside of a function."""
    own = WEB, SYNC
    conftest, *rest = [text for text in python_blocks() if not text.startswith(own)]
    tests = [text for text in rest if _compiles(text)]
    assert len(rest) - len(tests) == 1
    return conftest, "\n".join(tests)


def _compiles(text: str) -> bool:
    try:
        compile(text, PAGE, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("mark", RUNNERS)
def test_the_tests_of_the_page_pass(pytester: pytest.Pytester, mark: str) -> None:
    conftest, tests = module()
    wanted = len(re.findall(r"^async def test_", tests, re.MULTILINE))
    assert wanted == sum(
        isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_")
        for node in ast.parse(tests).body
    )
    if mark == "pytest.mark.asyncio":
        own = "import pytest_asyncio\n@pytest_asyncio.fixture"
        tests = tests.replace("pytest.mark.anyio", mark).replace("@pytest.fixture", own)
    loops = 2 if mark == "pytest.mark.anyio" else 1
    pytester.makeconftest(conftest)
    pytester.makepyfile(tests)
    done = pytester.runpytest_subprocess("-W", "error", *RUNNERS[mark])
    done.assert_outcomes(passed=wanted * loops)


def test_the_tests_of_a_web_application_pass(pytester: pytest.Pytester) -> None:
    """Without plugins for event loops: the client has a loop of its own."""
    (tests,) = [text for text in python_blocks() if text.startswith(WEB)]
    pytester.makepyfile(test_web=tests)
    done = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")
    done.assert_outcomes(passed=len(re.findall(r"^def test_", tests, re.MULTILINE)))


def test_the_tests_of_synchronous_code_pass(pytester: pytest.Pytester) -> None:
    conftest, _ = module()
    (tests,) = [text for text in python_blocks() if text.startswith(SYNC)]
    pytester.makeconftest(conftest)
    pytester.makepyfile(test_report=tests)
    done = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")
    done.assert_outcomes(passed=len(re.findall(r"^def test_", tests, re.MULTILINE)))
