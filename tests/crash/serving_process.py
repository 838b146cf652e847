"""A process that starts a private server, says where it is, and waits to be killed. See test_local_server_kill.py.

Usage: serving_process.py start|fork|leave [DIRECTORY]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from caliber.model.errors import Unavailable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.localserver.server import LocalServer


def say(what: dict[str, Any]) -> None:
    # In one piece: a forked child speaks into the same pipe.
    os.write(1, json.dumps(what).encode() + b"\n")


def main() -> LocalServer:
    mode, directory = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    say({"starting": os.getpid()})
    server = LocalServer.start(directory, fsync=False)
    child = None
    if mode == "fork":
        child = os.fork()
        if child == 0:
            with server:
                refused = []
                for call in (server.restart, server.kill, server.stop):
                    try:
                        call()
                    except Unavailable as error:
                        refused.append(error.reason)
            # Leaving the block, and closing again, must leave the parent's server alone.
            server.close()
            say({"refused": refused})
            time.sleep(600)
    where = {
        "dsn": server.dsn,
        "pid": server.pid,
        "guard": server.guard.pid,
        "folder": str(server.socket_directory.parent),
        "child": child,
    }
    say(where)
    if mode != "leave":
        time.sleep(600)
    return server


if __name__ == "__main__":
    SERVER = main()
