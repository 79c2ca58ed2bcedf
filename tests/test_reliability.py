"""The page on reliability names tests that there are, with their numbers; the page on licences names every package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def named_tests(line: str) -> list[tuple[str, str]]:
    """File and name of each test in a line; a name without a file is in the file before it."""
    found, file = [], ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", line):
        file = path or file
        assert file, f"{name} stands in no file"
        found.append((file, name))
    return found


def promises() -> list[str]:
    promised = PAGE.partition("## The last run on demand")[0]
    return [line for line in promised.splitlines() if line.startswith("| ") and not line.startswith("| promise")]


@pytest.mark.parametrize("line", promises(), ids=lambda line: line[2:40])
def test_every_promise_is_shown_by_tests_that_there_are(line):
    named = named_tests(line)
    assert named
    for file, name in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        found = re.search(rf"((?:^@.*\n(?:[ )\]}}].*\n)*)*)^(?:async )?def {name}\(", source, re.MULTILINE)
        assert found, f"{file} has no {name}"
        before = line.partition(f"::{name}`")[0].rpartition("| ")[2]
        is_slow = "pytest.mark.slow" in found[1] and "pytest.param" not in found[1]
        assert not is_slow or "on demand" in before, f"{name} does not run with every make test"


@pytest.mark.parametrize(
    ("told", "file", "written"),
    [
        ("300 damaged directories", "tests/fuzz/test_fuzzed_models.py", "n_trials=300"),
        ("on demand 10,000,", "tests/fuzz/test_fuzzed_models.py", "n_trials=10_000"),
        ("1,500 of each", "tests/fuzz/test_fuzzed_models.py", "n_trials=1_500"),
        ("300 in every run, on demand 5,000", "tests/fuzz/test_fuzzed_checkpoints.py", "[300, pytest.param(5_000"),
        ("25 made tables", "tests/test_any_table.py", "max_examples=25"),
        ("on demand 400,", "tests/test_any_table.py", "max_examples=400"),
        ("24 kills or more each", "tests/chaos/test_kills.py", "n_kills >= 24"),
        ("10 or more while a model is replaced", "tests/chaos/test_kills.py", "n_kills >= 10"),
    ],
)
def test_numbers_of_tries_are_those_of_the_tests(told, file, written):
    assert told in PAGE
    assert written in (ROOT / file).read_text(encoding="utf-8")


def test_every_package_asked_for_is_on_the_page_of_licences():
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    for text in everything:
        name = re.match(r"[\w.-]+", text)[0].lower()
        if "!= 'linux'" not in text:
            assert re.search(rf"^\| (\*\*)?{name}(\*\*)? \|", page, re.MULTILINE), f"{name} is missing: make licences"


def test_security_rules_are_on():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert [rule for rule in lint["ignore"] if rule.startswith("S")] == ["S101"]
    assert not any(folder.startswith("tabmoco") for folder in lint["per-file-ignores"])
