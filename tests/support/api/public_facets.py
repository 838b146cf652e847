"""Facets of the handle: the class of each, also of one that is imported for type checkers alone."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from typing import Any


def made_by(facet: property) -> Any:
    """Return the class of a property's value, also one that is imported for type checkers alone."""
    module = sys.modules[facet.fget.__module__]
    lazy = {
        alias.name: getattr(importlib.import_module(node.module), alias.name, None)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("caliber.")
        for alias in node.names
    }
    return inspect.signature(facet.fget, eval_str=True, locals=lazy).return_annotation
