"""Command line ``caliber``. A module is imported when its command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code: 0 done, 1 a problem, 2 a mistake in the call."""
    # NumPy's library starts a thread for each core, which spins for 50 ms; a command multiplies no large matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from caliber.cli.app import cli

        cli.main(None if arguments is None else list(arguments), prog_name="caliber")
    except KeyboardInterrupt:  # while still importing: a command handles its own
        sys.exit(130)
    sys.exit(0)
