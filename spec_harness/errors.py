"""The one exception that means: the user's configuration or input is wrong."""


class UserError(ValueError):
    """Wrong configuration or input: one line saying what, where and what would be right.

    The command turns it into a single ``error:`` line on stderr and exit code 2.
    """
