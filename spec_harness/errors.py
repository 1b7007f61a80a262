"""The one exception that means: the user's configuration or input is wrong; and how a command keeps talking."""

import sys
from io import TextIOWrapper


class UserError(ValueError):
    """Wrong configuration or input: one line saying what, where and what would be right.

    The command turns it into a single ``error:`` line on stderr and exit code 2.
    """


def tolerate_encodings() -> None:
    """A character that the terminal's encoding lacks is shown as a question mark; it must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
