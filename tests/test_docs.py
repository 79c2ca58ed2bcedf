"""The site builds, its numbers are right, every command has its page, and messages are quoted as they are."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import tabmoco
from tabmoco.cli import COMMANDS
from tabmoco.config import PretrainConfig
from tabmoco.nn.ema import EmaCopy
from tabmoco.nn.losses import info_nce

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert "Learn a row encoder from a table without labels" in api
    assert not list((tmp_path / "site").rglob("*.py"))
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")]
    assert not any("fonts.googleapis.com" in page for page in pages)


# ---------------------------------------------------------------- the worked example


def test_the_loss_of_four_similarities_is_what_the_page_says():
    similarities, temperature = [0.9, 0.5, 0.4, 0.3], 0.2
    key = torch.tensor([[s, math.sqrt(1 - s * s)] for s in similarities])
    query = torch.tensor([[1.0, 0.0]])
    loss = info_nce(query, key[:1], key[1:], allowed=torch.ones(1, 3, dtype=torch.bool), temperature=temperature)
    assert f"{loss.item():.3f}" == "0.237" and f"{math.exp(-loss.item()):.3f}" == "0.789"
    page = read("concepts.md")
    assert "= **0.237**" in page and "| **0.789** |" in page
    weights = [math.exp(s / temperature) for s in similarities]
    for similarity, weight in zip(similarities, weights, strict=True):
        share = f"{weight / sum(weights):.3f}"
        row = f"| {similarity} | {similarity / temperature:.1f} | {weight:.2f} | "
        assert row + share in page or row + f"**{share}**" in page
    assert f"| sum | | | {sum(weights):.2f} | 1 |" in page


@pytest.mark.parametrize("temperature", [1.0, 0.2, 0.05])
def test_the_table_of_temperatures_is_right(temperature):
    weights = [math.exp(s / temperature) for s in (0.9, 0.5, 0.4, 0.3)]
    told = re.search(rf"^\| {temperature:g} \| ([\d.]+) \| ([\d.]+) \|$", read("concepts.md"), re.MULTILINE)
    probability = weights[0] / sum(weights)
    for text, value in zip(told.groups(), (probability, -math.log(probability)), strict=True):
        assert text == f"{value:.{len(text.partition('.')[2])}f}"


def test_the_moving_average_is_what_the_page_says():
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.constant_(encoder.weight, 0.90)
    target = EmaCopy(encoder)
    nn.init.constant_(encoder.weight, 1.0)
    target.update(encoder, momentum=PretrainConfig().objective.ema_momentum)
    assert target.module.weight.item() == pytest.approx(0.901, abs=1e-6)
    steps = 1
    while target.module.weight.item() < 0.95:
        target.update(encoder, momentum=0.99)
        steps += 1
    page = read("concepts.md")
    assert "= **0.901**" in page and f"closed after {steps} steps" in page


def test_the_defaults_that_the_pages_reckon_with_are_those_of_the_code():
    config = PretrainConfig()
    assert (config.optimize.batch_size, config.objective.queue_size) == (256, 4_096)
    assert (config.objective.temperature, config.objective.ema_momentum) == (0.05, 0.99)
    assert (config.corruption.query_swap, config.corruption.mask) == ((0.2, 0.7), (0.0, 0.3))
    assert f"1 − 0.99¹⁶ = {1 - 0.99**16:.0%}".replace("%", " %") in read("concepts.md")


def test_equal_vectors_have_no_lower_loss_than_the_contrast_allows():
    """What the figures page says of a guess: ln(K + 1)."""
    key = normalize(torch.ones(4_097, 3), dim=1)
    loss = info_nce(key[:1], key[:1], key[1:], allowed=torch.ones(1, 4_096, dtype=torch.bool), temperature=0.05)
    assert f"ln(K + 1), {loss.item():.1f} for 4,096" in read("figures.md")


# ---------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def options() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options", DOCS / "options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_with_an_example(command):
    page = read(f"commands/{command}.md")
    assert page.startswith(f"# tabmoco {command}\n")
    assert re.search(rf"^tabmoco {command}\b", page, re.MULTILINE)
    assert f"[`{command}`]({command}.md)" in read("commands/index.md")
    assert f"commands/{command}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_options_on_the_pages_are_those_of_the_help(options):
    for path, text in options.pages().items():
        assert options.FIRST in text and options.LAST in text, path.name
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/options.py"


def test_options_are_told_with_their_words(options):
    renewed = options.renewed(f"a\n{options.FIRST}\nold\n{options.LAST}\nb", "new")
    assert renewed == f"a\n{options.FIRST}\nnew\n{options.LAST}\nb"
    assert "| `--fpr` `SHARE` | Share of normal rows that may be flagged. |" in read("commands/score.md")


# ---------------------------------------------------------------- the rest


def test_messages_in_the_debugging_guide_are_those_of_the_code():
    """The words of each quoted message, names and figures aside, stand in the source."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(tabmoco.__file__).parent.rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    for words in (
        "must have the columns of training, but ",
        "A table must be in memory, got a ",
        "is not a directory; give the directory that pretrain wrote.",
        "was altered or cut off; copy the model again",
        "there is no setting ",
        " with values never seen in training",
        "Training brought nothing that shows",
        "Training collapsed",
        "The encoded table is larger than data.in_memory_mb",
        "there is not enough memory",
    ):
        assert words.strip() in joined, words
        assert words.strip().rstrip(".") in read("debugging.md"), words


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert str(page.relative_to(DOCS).as_posix()) in navigation, page.name


def test_the_public_names_are_in_the_reference():
    reference = read("api.md")
    for name in tabmoco.__all__:
        home = tabmoco._HOME.get(name, "")
        is_result = name in ("Cluster", "Clusters", "Comparison", "Drift", "ProbeResult", "Schema")
        assert name.startswith("__") or is_result or home in reference or name in reference, name


def test_the_citation_has_the_version_of_the_project():
    assert f"version: {tabmoco.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
