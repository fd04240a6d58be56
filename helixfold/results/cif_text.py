"""Text that the CIF writer writes correctly: its own quoting fails for some quotes, reserved words and comments."""

import re
import textwrap

from helixfold.results.pdb import plain_text

# Text that CIF allows unquoted or in simple quotes; CIF's reserved words are excluded.
_SIMPLE_TEXT = re.compile(r"(?!data_|save_|loop_|stop_|global_)[a-z0-9][a-z0-9 ._:,()/+-]{0,70}", re.IGNORECASE)
_LONGEST, _LONGEST_WORD = 70, 60


def cif_text(*lines: str) -> str:
    """Return text for an item of any length: simple text unchanged, anything else as a text field of several lines."""
    plain = [plain_text(line) for line in lines]
    if len(plain) == 1 and _SIMPLE_TEXT.fullmatch(plain[0]):
        return plain[0]
    # A line that starts with a semicolon would end the field.
    return "\n".join(textwrap.fill(line, 78) for line in plain).replace("\n;", "\n ;") + "\n"


def cif_line(text: str, prefix: str = "target") -> str:
    """Return text for an item that has one line: what is not simple is replaced, and what is too long is cut."""
    line = " ".join(re.sub(r"[^A-Za-z0-9 ._:,()/+-]", "_", plain_text(text)).split())[:_LONGEST].strip()
    return line if _SIMPLE_TEXT.fullmatch(line) else f"{prefix} {line}".strip()


def cif_word(text: str, prefix: str = "target") -> str:
    """Return text for an item that is one word, such as the name of a data block."""
    word = re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:_LONGEST_WORD]
    return word if _SIMPLE_TEXT.fullmatch(word) else f"{prefix}_{word}"
