"""Configuration files of a private PostgreSQL server: caller's settings (checked), listening address, access."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from caliber.model.errors import InvalidValue
from support.localserver.files import SETTINGS
from support.localserver.place import Account, own_name

Value = str | int | float | bool

RESERVED: Final[Mapping[str, str]] = {
    "listen_addresses": "it follows from tcp",
    "port": "a free one is chosen",
    "unix_socket_directories": "a private folder is made",
    "fsync": "pass fsync",
    "data_directory": "pass directory",
    "config_file": "pass settings",
    "hba_file": "pass hba",
    "ident_file": "only the owner is let in without a password",
    "external_pid_file": "the server has a guard",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")


def setting_lines(settings: Mapping[str, Value]) -> list[str]:
    """Return settings as lines of a configuration file. Raises: InvalidValue, naming the setting."""
    lines = []
    for name, value in settings.items():
        field = f"settings[{name!r}]"
        if not _NAME.match(name):
            raise InvalidValue(field=field, reason="this is not the name of a setting")
        if name.lower() in RESERVED:
            raise InvalidValue(field=field, reason=f"this cannot be set here: {RESERVED[name.lower()]}")
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        if not text.isprintable():
            raise InvalidValue(field=field, reason="a value cannot hold control characters")
        lines.append(f"{name} = {_quoted(text)}")
    return lines


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


class Options:
    """Options of the caller, checked."""

    def __init__(
        self, settings: Mapping[str, Value], *, fsync: bool, tcp: bool, hba: Sequence[str], timeout_ms: int
    ) -> None:
        self.lines = setting_lines(settings)
        self.fsync = fsync
        self.tcp = tcp
        self.hba = tuple(hba)
        self.timeout_ms = timeout_ms
        if any(not line.isprintable() for line in self.hba):
            raise InvalidValue(field="hba", reason="each entry is one line")
        if timeout_ms <= 0:
            raise InvalidValue(field="timeout_ms", reason="must be above zero")

    def with_settings(self, settings: Mapping[str, Value]) -> Options:
        return Options(settings, fsync=self.fsync, tcp=self.tcp, hba=self.hba, timeout_ms=self.timeout_ms)


def write_settings(
    data: Path,
    who: Account,
    options: Options,
    *,
    sockets: Path,
    port: int,
) -> None:
    """Write the server's configuration: its own place, access rules, and the caller's settings."""
    state = "on" if options.fsync else "off"
    conf = [
        f"listen_addresses = '{'127.0.0.1' if options.tcp else ''}'",
        f"port = {port}",
        f"unix_socket_directories = {_quoted(str(sockets))}",
        "unix_socket_permissions = 0700",
        f"fsync = {state}",
        f"full_page_writes = {state}",
        # A killed server then leaves nothing outside its directory.
        "dynamic_shared_memory_type = mmap",
        "timezone = 'UTC'",
        "log_timezone = 'UTC'",
        *options.lines,
    ]
    access = [*options.hba, "local all all peer map=owner"]
    if options.tcp:
        access.append("host all all 127.0.0.1/32 scram-sha-256")
    for name, text in (
        (SETTINGS, conf),
        ("pg_hba.conf", access),
        ("pg_ident.conf", [f'owner "{own_name()}" all']),
    ):
        path = data / name
        new = path.with_name(name + ".new")
        new.touch(mode=0o600)
        new.write_text("\n".join(text) + "\n", encoding="utf-8")
        who.own(new)
        new.replace(path)
