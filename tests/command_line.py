"""Commands of the command line, run within the tests."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from tabmoco.cli import app


def invoke(*arguments: object) -> Result:
    """What comes of a command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    """What comes of a command that must work."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refuse(*arguments: object) -> str:
    """What a command that must refuse says on standard error; it prints nothing else."""
    result = invoke(*arguments)
    assert result.exit_code == 2 and result.stdout == "", result.output
    return result.stderr


def refuse_in_a_line(*arguments: object) -> str:
    """The same, where nothing but the reason is said."""
    (line,) = refuse(*arguments).splitlines()
    return line
