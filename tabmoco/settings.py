"""Settings as frozen dataclasses: checked against their types, read from and written to TOML."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin

from tabmoco.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """A frozen dataclass of settings and of groups of them, which are such dataclasses too."""

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build from nested settings, for instance those of a TOML file; unknown names are an error."""
        return _build(cls, settings, path="")

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a TOML file."""
        try:
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"the configuration {path} cannot be read: {error.strerror or error}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"the configuration {path} must be TOML: {error}.") from error
        return cls.from_dict(settings)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as TOML can hold them; fields that are none are left out."""
        return _plain(dataclasses.asdict(self))

    def to_toml(self) -> str:
        """The settings as a TOML document that `from_toml` reads back to an equal configuration."""
        lines: list[str] = []
        tables: list[str] = []
        for name, value in self.to_dict().items():
            if isinstance(value, dict):
                tables += ["", f"[{name}]", *(f"{key} = {_toml(entry)}" for key, entry in value.items())]
            else:
                lines.append(f"{name} = {_toml(value)}")
        return "\n".join(lines + tables) + "\n"

    def override(self, assignments: Iterable[str]) -> Self:
        """A copy with settings such as `objective.queue_size=8192` replaced; values are written as in TOML."""
        settings = self.to_dict()
        for assignment in assignments:
            key, sign, text = assignment.partition("=")
            if not sign or not key.strip():
                raise ConfigError(f"a setting must look like objective.queue_size=8192, got {assignment!r}.")
            *parents, leaf = key.strip().split(".")
            node = settings
            for parent in parents:
                node = node.setdefault(parent, {})
                if not isinstance(node, dict):
                    raise ConfigError(f"{parent} in {key.strip()} is a single value, not a group of settings.")
            if text.strip().lower() == "none":
                node.pop(leaf, None)
            else:
                node[leaf] = _parse_value(text.strip())
        return self.from_dict(settings)


def check_types(config: Any) -> None:
    """Check every field against its type; lists become tuples and whole numbers become floats where asked."""
    hints = _type_hints(config.__class__)
    for entry in dataclasses.fields(config):
        value, hint = getattr(config, entry.name), hints[entry.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            if not isinstance(value, hint):
                raise ConfigError(f"{entry.name} must be of type {hint.__name__}, got {value!r}.")
        else:
            object.__setattr__(config, entry.name, _cast(hint, value, name=entry.name))


_type_hints = functools.cache(typing.get_type_hints)


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _build(cls: type, settings: Mapping[str, Any], *, path: str) -> Any:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{path or 'the configuration'} must be a group of settings, got {settings!r:.200}.")
    hints = _type_hints(cls)
    known = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    values = {}
    for name, value in settings.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {path}{close[0]}?" if close else f"known settings: {', '.join(known)}."
            raise ConfigError(f"there is no setting {path}{name}; {remedy}")
        if dataclasses.is_dataclass(known[name]):
            values[name] = _build(known[name], value, path=f"{path}{name}.")
        else:
            values[name] = _cast(known[name], value, name=f"{path}{name}")
    return cls(**values)


def _cast(hint: Any, value: Any, *, name: str) -> Any:
    """Check `value` against a field's type; lists become tuples and whole numbers become floats where asked."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
    elif origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _cast(option, value, name=name)
            except ConfigError:
                continue
    elif origin is tuple and isinstance(value, (list, tuple)):
        if arguments[-1] is Ellipsis:
            return tuple(_cast(arguments[0], entry, name=name) for entry in value)
        if len(value) == len(arguments):
            return tuple(_cast(option, entry, name=name) for option, entry in zip(arguments, value, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {str(key): _cast(arguments[1], entry, name=f"{name}.{key}") for key, entry in value.items()}
    elif hint is types.NoneType:
        if value is None:
            return None
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{name} must be {_wording(hint)}, got {value!r:.200}.")


def _wording(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(_wording(option) for option in arguments)
    if origin is tuple:
        return f"a list of {'' if arguments[-1] is Ellipsis else len(arguments)} {_wording(arguments[0])}s".replace(
            "  ", " "
        )
    if origin is dict:
        return f"a group of {_wording(arguments[1])} values"
    return {int: "a whole number", float: "a number", str: "a text", types.NoneType: "none"}.get(hint, str(hint))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()) + "}"
    return repr(value)


def at_least(config: Any, **minima: float) -> None:
    for name, minimum in minima.items():
        value = getattr(config, name)
        if value is not None and not value >= minimum:
            raise ConfigError(f"{name} must be at least {minimum:,}, got {name}={value}; raise it.")


def between(config: Any, **ranges: tuple[float, float]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} must lie between {low} and {high}, got {name}={value}.")


def span(config: Any, name: str, low: float, high: float) -> None:
    start, end = getattr(config, name)
    if not low <= start <= end <= high:
        raise ConfigError(f"{name} must be a range within {low} and {high}, low end first, got {name}={[start, end]}.")
