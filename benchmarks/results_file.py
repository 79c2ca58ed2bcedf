"""Where results go, with what made them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def provenance(*more_packages: str) -> dict[str, Any]:
    """Command, commit, versions and machine of this run."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "status", "--porcelain", "tabmoco"], capture_output=True, text=True, check=False)
    packages = ("tabmoco", "torch", "numpy", "scikit-learn", "faiss-cpu", "pyarrow", "pandas", *more_packages)
    return {
        "command": shlex.join(["python", "-m", *_module_and_arguments()]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "cores": os.cpu_count(),
    }


def write_results(path: Path, results: dict[str, Any], markdown: str) -> None:
    """Write `path`.json and `path`.md, each aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(results, indent=1) + "\n"), (".md", markdown)):
        aside = path.with_suffix(suffix + ".writing")
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path.with_suffix(suffix))


def footer(facts: dict[str, Any]) -> str:
    """The provenance as the last lines of a Markdown page."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"\nMade by `{facts['command']}` at commit {facts['commit']} on {facts['cores']} cores, {versions}.\n"


def _module_and_arguments() -> list[str]:
    module = getattr(sys.modules["__main__"].__spec__, "name", None) or sys.argv[0]
    arguments = list(sys.argv[1:])
    if "--data-dir" in arguments:
        arguments[arguments.index("--data-dir") + 1] = "DATA"
    return [module, *arguments]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"
