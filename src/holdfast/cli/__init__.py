"""The command line: verbs over the contract. It is loaded by the command, never by the library.

Exit codes: 0 done, 1 refused or failed (one line on stderr says why, and begins with the code of
the error), 2 wrong usage, 3 `db check` found the schema pending or drifted.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

import holdfast
from holdfast.cli.database import db
from holdfast.cli.printed import help_without_verb, say, say_error
from holdfast.contract.errors import HoldfastError

REFUSED = 1


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(holdfast.__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int | None:
    """The durable half of an LLM agent, in one SQLite file or one PostgreSQL.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 `db check` found the schema pending
    or drifted.
    """
    return help_without_verb(context)


@cli.command()
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="Keep the database in this file, which must not exist yet.",
)
def demo(keep: str | None) -> None:
    """Kill a process in the middle of its turns, go on in another one, fork and rewind."""
    from holdfast.cli.demo import run

    run(keep)


cli.add_command(db)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command of this process, and end it with one of the exit codes."""
    sys.exit(run_command(arguments))


def run_command(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. Errors are one line, without a traceback."""
    try:
        done: Any = cli.main(arguments, prog_name="holdfast", standalone_mode=False)
    except HoldfastError as error:
        say_error(error)
        return REFUSED
    except click.UsageError as error:
        # The message repeats what was typed, and that may be a URL with a password.
        say(f"holdfast: {error.format_message()}", err=True)
        if error.ctx is not None:
            say(f"try: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    except click.ClickException as error:
        say(f"holdfast: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        say("holdfast: aborted", err=True)
        return REFUSED
    return done if isinstance(done, int) else 0
