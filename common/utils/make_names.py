"""Write a message for a user of make: its variables in place of the command line's options."""

import os
import re

VARIABLE = "LAYERLAB_MAKE"  # the Makefile sets it for what it runs: 1, or prune for a tool
_ITSELF = "run the python command itself, as in `make shell`"
_FLAGS = {"convert-weights", "dry-run", "every-row", "force", "full-test-sets", "paper-budget", "plan", "quick"}
_VALUES = {
    "alpha", "columns", "device", "dtype", "format", "layers", "limit", "minutes", "model", "out", "pictures", "port",
    "profile", "remove", "row", "samples", "seed", "tasks", "text",
}  # fmt: skip
_NAME = r"(?<![\w-])--([a-z][a-z-]*)"
# What follows an option as its value, not as the sentence's next word.
_TEXTS = r"[A-Z][A-Z_]*\b(?!=)|'[^']*'|\"[^\"]*\"|(?!-)[\w~.-]*[/.~_-][\w./~-]*\w"
_VALUE = rf"(?: (?:make: )?({_TEXTS}|[\w.,*/-]*\d[\w.,*/-]*|cpu|cuda|auto))?"
_WORD = r"(?: ('[^']*'|[^\s-]\S*))?"


def translated(text: str) -> str:
    """Return the text with make's names if make runs the command; else unchanged."""
    if not os.environ.get(VARIABLE):
        return text
    text = re.sub(r"`python -m [\w. ]+ --help` lists all options", "`make help` lists targets and variables", text)
    text = re.sub(r"`python -m reproductions run ([^`]*)`", _command, text)
    text = re.sub(r"python -m reproductions fetch (\S+?)(?=[`\s.,;]|$)", r"make \1-fetch", text)
    text = re.sub(_NAME + r"(?: [a-z0-9]+)? \(make: ([^)]*)\)", r"\2", text)
    text = re.sub(r"\b([A-Z_]+=\w*) \(--[a-z-]+\)", r"\1", text)
    text = re.sub(_NAME + _VALUE, _variable, text)
    python_only = [f"--{name}" for name in dict.fromkeys(re.findall(_NAME, text))]
    if python_only and os.environ[VARIABLE] == "prune" and _ITSELF not in text:
        text = f"{text}{'' if text[-1] in '.?!' else '.'} For {', '.join(python_only)} {_ITSELF}"
    return text


def _command(match: re.Match) -> str:
    """Return the make command that measures the same."""
    return f"`make {re.sub(_NAME + _WORD, _variable, match[1])}`"


def _variable(match: re.Match) -> str:
    option, value = match[1], match[2]
    name = option.replace("-", "_").upper() if option != "dry-run" else "DRYRUN"
    if option in _FLAGS:
        return f"{name}=1" + (f" {value}" if value else "")
    return f"{name}={value or ''}" if option in _VALUES else match[0]
