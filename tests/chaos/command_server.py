"""Runs the command line in processes that are quick to start: forks of one that has imported everything.

A program of its own, asked on standard input and answering on standard output, a line of JSON each. A request names the
arguments of a command, where it prints, and what is to become of it. The answers are the number of its process as soon
as it runs and, after another line, its exit code once it has ended, negative for the signal that killed it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

ACTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree")
"""What a process does to the disk, as Python's audit events call it."""

MODULES = (
    "faiss", "pandas", "pyarrow.csv", "pyarrow.dataset", "pyarrow.feather", "pyarrow.parquet", "rich.progress",
    "sklearn.decomposition", "sklearn.ensemble", "sklearn.linear_model", "sklearn.model_selection", "tabmoco.cli",
    "tabmoco.duplicates.search", "tabmoco.imputation.imputer", "tabmoco.model", "tabmoco.training.pretrain",
    "torch._dynamo",
)  # fmt: skip
"""What commands import, and what those modules import when they are first used."""


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(request)
        answer({"process": child})
        sys.stdin.readline()  # the number of a process is its own until it is waited for
        answer({"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})


def answer(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def run(request: dict[str, Any]) -> None:
    """The command, in a process of its own; never returns."""
    code = 99
    try:
        for descriptor, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
            mode = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(name, mode, 0o666), descriptor)
        if request["file_bytes"] is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], resource.RLIM_INFINITY))
        if request["memory_bytes"] is not None:
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + request["memory_bytes"], resource.RLIM_INFINITY))
        watch(request["folder"], request["act"], request["like"], request["number"])
        sys.argv = ["tabmoco", *request["arguments"]]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from tabmoco.cli import main

        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch(folder: str, act: int | None, like: str, number: int) -> None:
    """Write down what the process is about to do in `folder`/work, and send it a signal before one of these acts.

    Acts are counted from 1, those that have `like` in them.
    """
    if act is None:
        return
    n_acts = 0
    log = open(os.path.join(folder, "acts"), "w")

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n_acts
        if event not in ACTS or not str(arguments[0]).startswith(os.path.join(folder, "work", "")):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        words = f"{event} {os.path.relpath(arguments[0], folder)}"
        log.write(f"{words}\n")
        log.flush()
        if like in words:
            n_acts += 1
            if n_acts == act:
                os.kill(os.getpid(), number)

    sys.addaudithook(seen)


if __name__ == "__main__":
    from importlib import import_module

    for name in MODULES:
        import_module(name)
    for name, constant, value in json.loads(sys.argv[1]):
        setattr(import_module(name), constant, value)
    answer({"threads": len(os.listdir("/proc/self/task"))})
    serve()
