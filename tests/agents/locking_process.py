"""One process of several that lock; it does what its standard input orders, and answers with a line of JSON.

``acquire RESOURCE HOLDER WAIT_MS LEASE_MS`` answers with the token, or the name of the error.
"""

from __future__ import annotations

import json
import sys

import caliber
from caliber.agents import locks
from caliber.model.errors import CaliberError


def main() -> None:
    locks.PLACE_MS = 1_000  # type: ignore[misc]
    with caliber.open(caliber.load_config(sys.argv[1])) as memory:
        print(json.dumps("open"), flush=True)
        for line in sys.stdin:
            order, resource, holder, wait_ms, lease_ms = line.split()
            assert order == "acquire"
            try:
                lock = memory.agents.locks.acquire(
                    resource, holder=holder, wait_ms=int(wait_ms), lease_ms=int(lease_ms)
                )
                answer: object = lock.token
            except CaliberError as error:
                answer = type(error).__name__
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
