"""The verbs on a database: what schema it has, what it lacks, and bringing it up to date.

Only `apply` changes anything; the others may be run on a store that is in use.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.backend import schema_apply, schema_sql, schema_status
from holdfast.cli.printed import clean, help_without_verb, say, shown_url
from holdfast.sql.migrations import SchemaStatus

F = TypeVar("F", bound=Callable[..., Any])

NEEDS_ATTENTION = 3


@click.group(invoke_without_command=True)
@click.pass_context
def db(context: click.Context) -> int | None:
    """Look after the schema of a database.

    URL is a file, sqlite:///file or postgresql://…; left out, it is taken from HOLDFAST_URL.
    Only `apply` changes anything.
    """
    return help_without_verb(context)


def _arguments(command: F) -> F:
    """What every verb takes."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    schema = click.option("--schema", metavar="NAME", help="The schema, on PostgreSQL.")
    url = click.argument("url", envvar="HOLDFAST_URL")
    return url(schema(as_json(command)))


@db.command()
@_arguments
def plan(url: str, schema: str | None, as_json: bool) -> None:
    """Show which migrations `apply` would run."""
    status = schema_status(url, schema=schema)
    if as_json:
        _say_json(status)
        return
    _say_versions(url, status)
    for migration in status.pending:
        say(f"pending   {migration.version:04d} {migration.name}")
    if not status.pending:
        say("pending   nothing")


@db.command()
@_arguments
def sql(url: str, schema: str | None, as_json: bool) -> None:
    """Print the text of the migrations `apply` would run."""
    text = schema_sql(url, schema=schema)
    if as_json:
        click.echo(json.dumps({"sql": text}))
    elif text:
        # The text is the package's own, and its line breaks matter.
        click.echo(text, nl=False)
    else:
        say("-- nothing is pending")


@db.command()
@_arguments
def check(url: str, schema: str | None, as_json: bool) -> int:
    """Compare versions and structure; exit with 3 when they are not as expected."""
    status = schema_status(url, schema=schema)
    if not status.differences:
        # A newer store may still be usable, and says so; when it is not, this is a refusal.
        status.require_usable(migrate=True)
    attention = bool(status.pending or status.differences)
    if as_json:
        _say_json(status)
    else:
        _say_versions(url, status)
        for migration in status.pending:
            say(f"pending   {migration.version:04d} {migration.name}")
        for line in status.differences:
            say(f"differs   {line}")
        say("not as expected" if attention else "as expected")
    return NEEDS_ATTENTION if attention else 0


@db.command()
@_arguments
def apply(url: str, schema: str | None, as_json: bool) -> None:
    """Run the pending migrations, all or nothing. An empty database becomes a store."""
    before = schema_status(url, schema=schema)
    status = schema_apply(url, schema=schema)
    if as_json:
        _say_json(status, was=before.found)
        return
    _say_versions(url, status)
    if status.found == before.found:
        say("applied   nothing, it was up to date")
    else:
        for migration in before.pending:
            say(f"applied   {migration.version:04d} {migration.name}")


def _say_versions(url: str, status: SchemaStatus) -> None:
    say(f"database  {shown_url(url)}")
    if status.found > status.expected:
        say(f"found     version {status.found}, newer than this holdfast")
    else:
        say(f"found     {f'version {status.found}' if status.found else 'nothing'}")
    say(f"expected  version {status.expected}")


def _say_json(status: SchemaStatus, **more: Any) -> None:
    found = {
        "found": status.found,
        "expected": status.expected,
        "oldest_reader": status.oldest_reader,
        "pending": [{"version": m.version, "name": m.name} for m in status.pending],
        "differences": [clean(line) for line in status.differences],
        **more,
    }
    click.echo(json.dumps(found))
