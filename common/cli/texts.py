"""The user's own text files."""

from functools import lru_cache
from pathlib import Path

from common.utils import json_lines
from common.utils.errors import UserError


@lru_cache(maxsize=2)
def read(name: str) -> str:
    """Return a text file's content; of JSON lines the column ``text``, a paragraph each.

    Raises:
        UserError: the file cannot be read, is not UTF-8, is empty, or is JSON with a damaged line or without that
            column.
    """
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = f"it is no UTF-8 text (byte {error.start})" if isinstance(error, UnicodeDecodeError) else None
        raise UserError(
            f"cannot read the text {name}: {reason or getattr(error, 'strerror', None) or error}. Name a UTF-8 file, or a "
            "corpus such as wikitext2-train"
        ) from error
    if not text.strip():
        raise UserError(f"the text {name} is empty")
    if not json_lines.is_json(name, text):
        return text
    rows = json_lines.rows(name, text)
    if any(not isinstance(row.get("text"), str) for row in rows):
        raise UserError(
            f"the text {name} is JSON lines without a column 'text' of strings; name a plain text, or add it"
        )
    return "\n\n".join(row["text"] for row in rows)
