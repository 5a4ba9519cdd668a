"""How ranks come to their end."""

from __future__ import annotations

from typing import NamedTuple


class Ending(NamedTuple):
    """How a rank came to its end."""

    how: str
    """`ended`, `exited`, `failed` (an exception), `died`, or `stopped` by us after its steps."""
    say: str = ""
    place: str = ""
    """file:line of the user's program."""
    function: str = ""
    """That of the place, of an exception."""
    unrehearsable: bool = False
    """It failed in something that only a GPU can do, so the script is not to blame."""
