"""Handle and functions of the asynchronous API, made at run time. Generated types: ``asynchronous.pyi``."""

from caliber.api import opening
from caliber.api.aio_base import as_coroutine
from caliber.api.aio_proxy import face_of
from caliber.api.caliber import Caliber

AsyncCaliber = face_of(Caliber)
create, migrate, open, purge, restore = map(  # noqa: A001  (the pinned name)
    as_coroutine, (opening.create, opening.migrate, opening.open, opening.purge, opening.restore)
)
