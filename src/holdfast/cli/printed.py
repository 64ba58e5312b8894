"""Everything the command line prints goes through here: it is plain text, and it holds no secret.

What is stored was written by models and strangers. Printed as it is, it could move the cursor, turn
the direction of the text, or pass one name off as another.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import urlsplit

import click

from holdfast.contract.errors import HoldfastError

WRONG_USAGE = 2

# Joiners shape letters and emoji; every other format character is invisible.
_JOINERS = {"\u200c", "\u200d"}
_DROPPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_BREAKS = re.compile(r"[^\S ]+")
_CREDENTIALS = re.compile(r"(\b\w+://)\S*@")
_PASSWORD = re.compile(r"((?:password|passwd|pwd|secret|token)=)[^&\s]*", re.I)


def clean(text: str) -> str:
    """One line without control, direction and other invisible characters."""
    line = _BREAKS.sub(" ", text)
    return "".join(
        char for char in line if char in _JOINERS or unicodedata.category(char) not in _DROPPED
    ).strip()


def without_secrets(text: str) -> str:
    """The text with what stands before the @ of a URL, and what is named a password, taken out."""
    return _PASSWORD.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def shown_url(url: str) -> str:
    """A database as it may be shown: a path, or the host and the name without anything else."""
    if "://" not in url:
        return clean(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the database"
    host = parts.netloc.rpartition("@")[2]
    return clean(f"{parts.scheme}://{host}{parts.path}")


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    click.echo(clean(without_secrets(text)), err=err)


def say_error(error: HoldfastError) -> None:
    """Print what was not done, as one line that begins with the code of the error."""
    say(f"holdfast: {error.code}: {error}", err=True)


def help_without_verb(context: click.Context) -> int | None:
    """What a group of commands does when none is named: it lists them, as wrong usage."""
    if context.invoked_subcommand is not None:
        return None
    click.echo(context.get_help(), err=True)
    return WRONG_USAGE
