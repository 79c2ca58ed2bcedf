"""The default configuration as TOML that explains itself."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from tabmoco.config import PretrainConfig

WIDTH = 100


def field_docstrings(config: type) -> dict[str, str]:
    """The string below each field of a configuration class, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = " ".join(text.split())
    return docstrings


def commented_toml() -> str:
    """Every setting with its default, below a comment that says what it means; a file for `--config`."""
    values = _lines_by_setting()
    lines = [*_comment(PretrainConfig), *_settings(PretrainConfig, "", values)]
    for name, group in typing.get_type_hints(PretrainConfig).items():
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            lines += ["", *_comment(group), f"[{name}]", *_settings(group, name, values)]
    return "\n".join(lines) + "\n"


def _lines_by_setting() -> dict[tuple[str, str], str]:
    """The lines of the default configuration's TOML by group and name."""
    group, lines = "", {}
    for line in PretrainConfig().to_toml().splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        elif line:
            lines[group, line.partition(" = ")[0]] = line
    return lines


def _settings(config: type, group: str, values: dict[tuple[str, str], str]) -> Iterator[str]:
    hints, docstrings = typing.get_type_hints(config), field_docstrings(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        yield ""
        choices = _choices(hints[field.name])
        text = docstrings[field.name] + (f" Choices: {', '.join(choices)}." if choices else "")
        yield from textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield values.get((group, field.name), f"# {field.name} is not set by default")


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(choice) for choice in get_args(hint)]
    return [choice for part in get_args(hint) for choice in _choices(part)] if get_origin(hint) is not dict else []


def _comment(config: type) -> list[str]:
    return textwrap.wrap(inspect.getdoc(config) or "", WIDTH, initial_indent="# ", subsequent_indent="# ")
