"""Running the command line in tests: in this process for most, as a real process where that is the point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result


def caliber(*arguments: str | Path, code: int | None = 0) -> Result:
    """Run a command in this process and check its exit code, unless any will do."""
    from caliber.cli.app import cli

    result = CliRunner(env={"CALIBER_CONFIG": None, "CI": None}).invoke(cli, [str(item) for item in arguments])
    assert code is None or result.exit_code == code, (
        f"{arguments}: exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    )
    assert "Traceback" not in result.stderr
    return result


def caliber_json(*arguments: str | Path, code: int = 0) -> Any:
    """Run a command with --json; stdout must be exactly one document."""
    return json.loads(caliber(*arguments, "--json", code=code).stdout)


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of a real process."""
    return [sys.executable, "-m", "caliber", *(str(item) for item in arguments)]


def git(folder: Path, *arguments: str, date: str = "2024-01-10T10:00:00+00:00", raw: bytes | None = None) -> str:
    """Run git in a folder, with nothing of this machine's settings."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada Lovelace",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada Lovelace",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
    }
    done = subprocess.run(["git", *arguments], cwd=folder, env=env, input=raw, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "replace").strip()


def repository(folder: Path) -> Path:
    """Make an empty repository."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(
    folder: Path, message: str | bytes, files: dict[str, str | bytes | None], date: str = "2024-01-10T10:00:00+00:00"
) -> str:
    """Write (or, for None, remove) files, commit them, and return the commit's hash."""
    for name, content in files.items():
        file = folder / name
        if content is None:
            file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "-A")
    raw = message.encode() if isinstance(message, str) else message
    git(
        folder,
        "commit",
        "-q",
        "--allow-empty",
        "--allow-empty-message",
        "--cleanup=verbatim",
        "-F",
        "-",
        date=date,
        raw=raw,
    )
    return git(folder, "rev-parse", "HEAD")


def many_commits(folder: Path, count: int) -> Path:
    """Make a repository with many commits, quickly."""
    repository(folder)
    lines = []
    for number in range(count):
        when = 1_600_000_000 + number * 3_600
        message = f"Change number {number} of the engine"
        content = f"line {number}\n"
        lines.append(
            f"commit refs/heads/main\nmark :{number + 1}\nauthor Bo <bo@example.org> {when} +0000\n"
            f"committer Bo <bo@example.org> {when} +0000\ndata {len(message)}\n{message}\n"
            + (f"from :{number}\n" if number else "")
            + f"M 100644 inline file.txt\ndata {len(content)}\n{content}\n"
        )
    git(folder, "fast-import", "--quiet", raw="".join(lines).encode())
    return folder
