"""Detection of structured blocks in a turn: fenced code, unified diffs, stack traces, error lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import ArtifactType
from caliber.text.sentences import closes_fence, lines, opens_fence

# Only this much of a line is examined, so that no pattern runs on a long string.
_LINE_CHARS = 400

_DIFF_LANGUAGES = frozenset({"diff", "patch"})
_PLAIN_LANGUAGES = frozenset({"text", "txt", "plain", "plaintext", "console", "output", "log", "logs", "terminal"})
_SHELL_LANGUAGES = frozenset({"sh", "bash", "zsh", "shell", "fish", "powershell", "console", "bat", "cmd"})

_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_DIFF_HEADER = re.compile(
    r"(?:diff --git |index |--- |\+\+\+ |old mode |new mode |new file mode |deleted file mode |similarity index |"
    r"rename from |rename to |copy from |copy to |Binary files )"
)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_THROWN = re.compile(
    r'\s{0,8}(?:Exception in thread "[^"]{0,100}" |Caused by: |Uncaught )?[\w.$]{0,150}(?:Error|Exception|Throwable)\b'
)
_FRAME = re.compile(r"\s{1,16}at \S")
_TRACE_MORE = re.compile(r"(?:\s{1,16}at \S|\s{0,8}Caused by: |\s{0,16}\.\.\. \d{1,6} more|\s{1,8}Suppressed: )")
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]{0,150}(?:Error|Exception|Interrupt|Exit|Warning|Group)?(?::|$)")
_RUST_PANIC = re.compile(r"thread '[^']{0,100}' (?:\(\d{1,12}\) )?panicked at ")
_ERROR_LINE = re.compile(
    r"(?:\[?\d{2,4}[-/:][\dT:.,/ +Z-]{4,36}\]?\s{1,4})?\[?(?:ERROR|FATAL|CRITICAL|SEVERE)\b"
    r"|(?:[\w./\\-]{1,150}:\d{1,7}:(?:\d{1,5}:)?\s)?(?:fatal )?error(?:\[[A-Z]\d{1,5}\]| TS\d{1,5})?: \S"
    r"|[A-Za-z_][\w.]{0,100}(?:Error|Exception): \S"
    r"|(?:Error|ERROR|fatal|npm ERR!|FAILED|Segmentation fault|Killed|E {2,8}\w{1,60}(?:Error|Exception))(?:: | \S|$)"
)
# A line without one of these starts no block, and skips all further patterns.
_INTERESTING = re.compile(
    r"```|~~~|diff --git |--- |Traceback|rror|xception|ERR|FATAL|CRITICAL|SEVERE|FAILED|fatal|pani|fault|Killed"
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block and its place in the text. ``artifact_type`` is None for fenced text that is neither code nor error."""

    artifact_type: ArtifactType | None
    content: str
    start: int
    end: int
    confidence: float


def find_blocks(text: str, *, fences: bool = True) -> list[Block]:
    """Return the blocks of a text in order; they do not overlap. Without ``fences``, fenced code is text like any."""
    spans = list(lines(text))
    blocks: list[Block] = []
    index = 0
    while index < len(spans):
        start, end = spans[index]
        if _INTERESTING.search(text, start, min(end, start + _LINE_CHARS)) is None:
            index += 1
            continue
        found, index = _block_at(text, spans, index, fences)
        blocks += found
    return blocks


def find_errors(text: str) -> list[Block]:
    """Return only the stack traces and error lines of a text, whether in fences or not."""
    return [block for block in find_blocks(text, fences=False) if block.artifact_type is ArtifactType.ERROR_LOG]


def is_diff(text: str) -> bool:
    """Return whether the text holds a unified diff from its start on."""
    spans = list(lines(text[:4_000]))
    first = next((place for place, (start, end) in enumerate(spans) if text[start:end].strip()), 0)
    return bool(spans) and _diff_end(text, spans, first) > first


def _block_at(text: str, spans: Sequence[tuple[int, int]], index: int, fences: bool) -> tuple[list[Block], int]:
    """Return the block that starts at this line, if any, and the line after it."""
    start, end = spans[index]
    fence = opens_fence(text, start, end) if fences else None
    if fence is not None:
        return _fenced(text, spans, index, fence)
    stop = _diff_end(text, spans, index)
    if stop > index:
        return [_block(text, spans, index, stop, ArtifactType.CODE_PATCH, 0.9)], stop
    stop = _trace_end(text, spans, index)
    if stop > index:
        return [_block(text, spans, index, stop, ArtifactType.ERROR_LOG, 0.9)], stop
    stop = index
    while stop < len(spans) and _ERROR_LINE.match(_line(text, spans[stop])):
        stop += 1
    if stop > index:
        return [_block(text, spans, index, stop, ArtifactType.ERROR_LOG, 0.7)], stop
    return [], index + 1


def _block(
    text: str, spans: Sequence[tuple[int, int]], first: int, stop: int, kind: ArtifactType, confidence: float
) -> Block:
    start, end = spans[first][0], spans[stop - 1][1]
    return Block(kind, text[start:end].strip("\r\n"), start, end, confidence)


def _line(text: str, span: tuple[int, int]) -> str:
    return text[span[0] : min(span[1], span[0] + _LINE_CHARS)]


def _fenced(
    text: str, spans: Sequence[tuple[int, int]], index: int, fence: tuple[str, int, str]
) -> tuple[list[Block], int]:
    close = index + 1
    while close < len(spans) and not closes_fence(text, *spans[close], fence[:2]):
        close += 1
    start, end = spans[index][0], spans[min(close, len(spans) - 1)][1]
    inner = text[spans[index + 1][0] : spans[close - 1][1]] if close > index + 1 else ""
    after = min(close + 1, len(spans))
    if not inner or inner.isspace():
        return [Block(None, inner, start, end, 0.0)], after
    words = fence[2].split()
    language = words[0].strip("{}.").lower() if words else ""
    if language in _DIFF_LANGUAGES:
        return [Block(ArtifactType.CODE_PATCH, inner, start, end, 0.95)], after
    if not language or language in _PLAIN_LANGUAGES:
        errors = [] if is_diff(inner) else find_errors(inner)
        if errors:
            return [Block(ArtifactType.ERROR_LOG, inner, start, end, max(error.confidence for error in errors))], after
        if language:
            return [Block(None, inner, start, end, 0.0)], after
    confidence = 0.9 if is_diff(inner) else 0.6 if not language or language in _SHELL_LANGUAGES else 0.8
    return [Block(ArtifactType.CODE_PATCH, inner, start, end, confidence)], after


def _diff_end(text: str, spans: Sequence[tuple[int, int]], index: int) -> int:
    """Return the line after the unified diff that starts here, or ``index`` if none does."""
    first = _line(text, spans[index])
    if not first.startswith("diff --git "):
        followed = [_line(text, span) for span in spans[index + 1 : index + 3]]
        if not (
            first.startswith("--- ")
            and len(followed) == 2
            and followed[0].startswith("+++ ")
            and _HUNK.match(followed[1])
        ):
            return index
    place, end, hunks = index, index, 0
    while place < len(spans):
        line = _line(text, spans[place])
        hunk = _HUNK.match(line)
        if hunk:
            place = _hunk_end(text, spans, place + 1, int(hunk[1] or 1), int(hunk[2] or 1))
            hunks += 1
        elif _DIFF_HEADER.match(line) or line.startswith("\\"):
            place += 1
        else:
            break
        end = place
    return end if hunks or first.startswith("diff --git ") else index


def _hunk_end(text: str, spans: Sequence[tuple[int, int]], place: int, old: int, new: int) -> int:
    # The counts of the header give the length of the hunk; a line of another kind ends a damaged one.
    while place < len(spans) and (old > 0 or new > 0):
        start, end = spans[place]
        mark = text[start] if end > start else " "
        if mark == " ":
            old, new = old - 1, new - 1
        elif mark == "-":
            old -= 1
        elif mark == "+":
            new -= 1
        elif mark != "\\":
            break
        place += 1
    return place


def _trace_end(text: str, spans: Sequence[tuple[int, int]], index: int) -> int:
    """Return the line after the stack trace that starts here, or ``index`` if none does."""
    first = _line(text, spans[index])
    if _TRACEBACK in first or "Exception Group Traceback" in first:
        return _python_end(text, spans, index)
    following = _line(text, spans[index + 1]) if index + 1 < len(spans) else ""
    if _FRAME.match(following) and _THROWN.match(first):
        return _while(text, spans, index + 1, _TRACE_MORE)
    if first.startswith("panic: ") or _RUST_PANIC.match(first):
        place = index
        while place < len(spans) and not _blank(text, spans[place]):
            place += 1
            if place + 1 < len(spans) and _line(text, spans[place + 1]).startswith("goroutine "):
                place += 1
        return place
    return index


def _python_end(text: str, spans: Sequence[tuple[int, int]], index: int) -> int:
    while True:
        place = _python_frames_end(text, spans, index)
        chain = place
        while chain < len(spans) and chain < place + 2 and _blank(text, spans[chain]):
            chain += 1
        if chain >= len(spans) or not _line(text, spans[chain]).lstrip().startswith(_CHAINED):
            return place
        chain += 1
        while chain < len(spans) and _blank(text, spans[chain]):
            chain += 1
        if chain >= len(spans) or _TRACEBACK not in _line(text, spans[chain]):
            return place
        index = chain


def _python_frames_end(text: str, spans: Sequence[tuple[int, int]], index: int) -> int:
    margin = _margin(text, spans[index])
    place = index + 1
    # Frames are indented below the heading; the line that names the exception is not.
    while place < len(spans) and not _blank(text, spans[place]):
        grouped = _line(text, spans[place]).lstrip().startswith(("|", "+-"))
        if not grouped and _margin(text, spans[place]) <= margin:
            break
        place += 1
    if place < len(spans) and _PYTHON_ERROR.match(_line(text, spans[place]).lstrip()):
        place += 1
    return place


def _while(text: str, spans: Sequence[tuple[int, int]], place: int, pattern: re.Pattern[str]) -> int:
    while place < len(spans) and pattern.match(_line(text, spans[place])):
        place += 1
    return place


def _blank(text: str, span: tuple[int, int]) -> bool:
    return not text[span[0] : span[1]].strip()


def _margin(text: str, span: tuple[int, int]) -> int:
    line = _line(text, span)
    return len(line) - len(line.lstrip())
