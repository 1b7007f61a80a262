"""What both commands say to a terminal: one line where something is wrong, in whatever characters it has."""

import os
import sys
import traceback
from io import TextIOWrapper


def tolerate_encodings() -> None:
    """A character that the terminal's encoding lacks is shown as a question mark; it must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_error(error: BaseException | str) -> None:
    """One ``error:`` line; ``HYDRA_FULL_ERROR=1`` shows where it came from."""
    if isinstance(error, BaseException) and os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
