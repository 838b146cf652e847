"""The language of ``.caliber`` files: adapters, memory types, policies and rules of injection, as text.

Source: C §2, decisions K-054 to K-072.
"""

from caliber.dsl.parser import Parsed, parse, read
from caliber.dsl.printer import format_text, render

__all__ = ["Parsed", "format_text", "parse", "read", "render"]
