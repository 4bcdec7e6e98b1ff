"""Find the code in a model's text: the last fenced block that is Python."""

from __future__ import annotations

from search.extract import ThinkingMarkers, visible_text

_NAMES = frozenset({"", "python", "python3", "py", "py3", "python3.11"})


def last_code_block(text: str, thinking: ThinkingMarkers | None = None) -> str | None:
    """The last Python code block outside thinking; None if there is none.

    A block stands between lines of at least three backticks or tildes, as CommonMark 0.31 (section 4.5)
    defines it, inside a list item too. It is Python when it is named so or has no name. A block that is not
    closed ends with the text, since a model may stop right after its code. A blank one counts for nothing.

    Returns:
        The block's lines, without the indentation of its fence, each ended by a line feed.

    Time is linear in the length of the text.
    """
    found: str | None = None
    fence, indent, wanted = "", 0, False
    lines: list[str] = []
    for line in [*visible_text(text, thinking).splitlines(), None]:
        if fence and (line is None or _closes(line, fence)):
            block = "".join(lines)
            if wanted and block.strip():
                found = block
            fence, lines = "", []
        elif line is None:
            break
        elif fence:
            if wanted:
                lines.append(_without_indent(line, indent) + "\n")
        else:
            fence, info = _opens(line)
            indent = len(line) - len(line.lstrip(" "))
            wanted = info.casefold() in _NAMES
    return found


def _opens(line: str) -> tuple[str, str]:
    """The fence that a line opens and the name behind it; empty when it opens none."""
    body = line.lstrip(" ")
    mark = body[:1]
    if mark not in ("`", "~"):
        return "", ""
    rest = body.lstrip(mark)
    fence = body[: len(body) - len(rest)]
    # ```code``` in one line is a span of code and no fence.
    if len(fence) < 3 or (mark == "`" and "`" in rest):
        return "", ""
    words = rest.replace("{", " ").replace("}", " ").replace(",", " ").split()
    return fence, words[0].lstrip(".") if words else ""


def _closes(line: str, fence: str) -> bool:
    body = line.strip(" \t")
    return len(body) >= len(fence) and not body.strip(fence[0])


def _without_indent(line: str, indent: int) -> str:
    head = line[:indent]
    return line[len(head) - len(head.lstrip(" ")) :] if head.strip(" ") else line[indent:]
