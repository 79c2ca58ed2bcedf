"""Promises of the package itself: light imports, one direction of imports, help everywhere, nothing unsafe."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tabmoco
from tabmoco.cli import app
from tabmoco.config import PretrainConfig
from tabmoco.config_page import field_docstrings

ROOT = Path(__file__).parent.parent
PACKAGE = Path(tabmoco.__file__).parent
COMMANDS = [
    "schema",
    "pretrain",
    "info",
    "embed",
    "score",
    "search",
    "drift",
    "update",
    "duplicates",
    "cluster",
    "impute",
    "columns",
    "report",
    "probe",
    "benchmark",
    "export",
    "serve",
    "config",
]
HEAVY = {"faiss", "numpy", "pandas", "polars", "pyarrow", "scipy", "sklearn", "torch"}
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def imported_names(path: Path) -> set[str]:
    """First parts of the names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("module", ["tabmoco", "tabmoco.cli", "tabmoco.config"])
def test_importing_loads_nothing_heavy(module):
    loaded = set(run_python(f"import sys, {module}; print(*sys.modules)").split())
    assert module in loaded
    assert loaded & HEAVY == set()


def test_help_loads_nothing_heavy():
    code = f"import sys\nfrom tabmoco.cli import app\ntry: app({['score', '--help']!r})\nfinally: print(*sys.modules)"
    loaded = set(run_python(code).splitlines()[-1].split())
    assert "tabmoco.cli" in loaded
    assert loaded & HEAVY == set()


def test_public_names_are_there_and_no_others():
    for name in tabmoco.__all__:
        assert getattr(tabmoco, name) is not None
    assert dir(tabmoco) == sorted(tabmoco.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Pretrain'"):
        tabmoco.Pretrain  # noqa: B018


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tabmoco.__version__ == project["version"]


def test_every_command_is_known_here():
    assert sorted(command.callback.__name__ for command in app.registered_commands) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: tabmoco {command}" in result.stdout
    for option in ("--json", "--quiet"):
        assert option in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_names_real_options(command):
    """The example of a command parses: it fails for its missing files, not for its options."""
    (example,) = [known.epilog for known in app.registered_commands if known.callback.__name__ == command]
    words = example.partition("tabmoco ")[2].partition(" >")[0].split()
    result = CliRunner().invoke(app, words)
    assert "No such option" not in result.output
    assert "Usage" not in result.output


def test_every_setting_is_documented():
    pending = [PretrainConfig]
    while pending:
        config = pending.pop()
        hints = typing.get_type_hints(config)
        groups = [
            hints[field.name] for field in dataclasses.fields(config) if dataclasses.is_dataclass(hints[field.name])
        ]
        settings = {field.name for field in dataclasses.fields(config) if hints[field.name] not in groups}
        assert settings - set(field_docstrings(config)) == set()
        pending += groups


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_that_runs_code_from_files_is_imported(path):
    assert imported_names(path) & UNSAFE == set()


def test_every_dependency_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    names = {re.split(r"[\[>]", requirement)[0].replace("-", "_") for requirement in requirements}
    declared = names | {"sklearn", "faiss", "tabmoco"}
    imported = set().union(*(imported_names(path) for path in PACKAGE.rglob("*.py")))
    assert imported - declared - set(sys.stdlib_module_names) == set()


def test_imports_go_down_only():
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("import-linter is not installed")
    run = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
