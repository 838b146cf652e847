"""Command ``fmt``: reformats ``.caliber`` files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from caliber.cli.failures import DONE, PROBLEM, Problem, UsageError
from caliber.cli.settings import Settings, with_settings
from caliber.config.parsing import MAX_BYTES
from caliber.model.process.files import read_bytes


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 when a file is not in the layout.")
@with_settings
def fmt(settings: Settings, files: tuple[Path, ...], check: bool) -> int:
    """Lay out .caliber files, keeping their comments; `-` formats standard input to standard output.

    A file with faults is left as it is, and every fault is named.
    """
    from caliber.cli.setup import write_whole
    from caliber.dsl import format_text
    from caliber.model.errors import ConfigError, MultipleErrors

    faults: list[ConfigError] = []
    changed: list[str] = []
    for file in files:
        text = _read(file)
        try:
            laid_out = format_text(text, name=str(file))
        except MultipleErrors as error:
            faults.extend(error.errors)
            continue
        if str(file) == "-":
            if check:
                changed.extend(["-"] if laid_out != text else [])
            else:
                click.echo(laid_out, nl=False)
        elif laid_out != text:
            changed.append(str(file))
            if not check:
                write_whole(file, laid_out)
    if faults:
        raise MultipleErrors(errors=faults)

    def human() -> None:
        for name in changed:
            settings.out.print(f"{'would change' if check else 'changed'} {name}")

    if not (files == (Path("-"),) and not check):
        settings.out.result({"ok": not (check and changed), "changed": changed, "files": len(files)}, human)
    return PROBLEM if check and changed else DONE


def _read(file: Path) -> str:
    try:
        size = MAX_BYTES + 1
        raw = sys.stdin.buffer.read(size) if str(file) == "-" else read_bytes(file, size)
        if len(raw) > MAX_BYTES:
            raise Problem(f"{file} is larger than {MAX_BYTES} bytes", "give parts of it files of their own: include")
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such file", "name a .caliber file") from None
    except IsADirectoryError:
        raise UsageError(f"{file} is a folder", "name the files in it") from None
    except UnicodeDecodeError as error:
        raise Problem(f"{file} is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise Problem(f"{file} cannot be read ({error.strerror})", "name a file that you may read") from None
