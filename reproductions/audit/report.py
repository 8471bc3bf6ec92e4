"""The audit as text: for the terminal, as JSON, and as ``papers/AUDIT.md``."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from common.console.text_tables import markdown
from common.utils.paths import ROOT
from reproductions.audit import FIELDS, NAMES, key, names
from reproductions.audit import findings as all_findings
from reproductions.audit.engine import KINDS, VERDICTS, Finding
from reproductions.spec import reported
from reproductions.spec.registry import PAPERS

# Long lists of single cells are folded.
FOLDED, FEW = ("no k of n", "standard error"), 5
PATH = ROOT / "papers" / "AUDIT.md"


def as_json(findings: Sequence[Finding]) -> str:
    """Return one object per finding."""
    return json.dumps([asdict(finding) for finding in findings], indent=1) + "\n"


def as_text(findings: Sequence[Finding]) -> str:
    """Format the findings for the terminal: one block per finding, grouped by paper."""
    blocks = [summary(findings)]
    for paper, title in PAPERS.items():
        blocks.append(f"{title}\n{'-' * len(title)}")
        for f in (f for f in findings if f.paper == paper):
            lines = [f"{f.name}  {f.where}  [{f.verdict}]", f"    printed {f.printed}; recomputed {f.recomputed}"]
            lines += [f"    {text}" for text in (f.arithmetic, f.meaning) if text]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def summary(findings: Sequence[Finding]) -> str:
    """Summarise the number of checks and findings in one sentence."""
    checked = sum(len(reported.numbers(paper, table)) for paper in PAPERS for table in reported.tables(paper))
    verdicts = Counter(f.verdict for f in findings)
    return f"{len(findings)} findings in {checked} printed numbers: {_tally(verdicts)}."


def _tally(verdicts: Counter) -> str:
    words = dict(
        zip(VERDICTS, ("slips of the paper", "of text extraction", "of definition", "unresolved"), strict=True)
    )
    return ", ".join(f"{verdicts[v]} {words[v]}" for v in VERDICTS if verdicts[v])


def as_markdown(findings: Sequence[Finding]) -> str:
    """Return the report as Markdown: the most important findings first, then all of them, paper by paper."""
    blocks = [
        "# The papers' arithmetic, checked",
        "Before you cite a number of these four papers, see whether it stands here. "
        f"{summary(findings)} `make audit` recomputes all of it from the numbers as printed (`papers/*/reported`) and the "
        "shapes of the models; nothing is listed by hand. A finding says that printed numbers contradict one another, or "
        "cannot be what they are said to be; it does not say why. Where rounding explains a difference, there is no finding.",
        "A *slip*: another printed number shows what should stand there, or no reading of it can be right. *Definition "
        "differs*: it is right by another definition than the one that is given (points for percent, a share of layers for "
        "one of parameters). *Text extraction*: the PDF's text, not the paper, is wrong there. *Unresolved*: something is "
        "wrong, and the numbers do not say which. *The summary* is the blog post of LinearPatch's conference version, with "
        "tables of its own.",
        "## If you cite one of these",
        "\n".join(f"- **{PAPERS[f.paper]}** ({f.name}). {_plain(f.headline)}" for f in findings if f.headline),
    ]
    for paper, title in PAPERS.items():
        own = [f for f in findings if f.paper == paper]
        blocks.append(f"## {title}\n\n{len(own)} findings: {_tally(Counter(f.verdict for f in own))}.")
        blocks += [_section(kind, [f for f in own if f.kind == kind]) for kind in KINDS]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _section(kind: str, findings: Sequence[Finding]) -> str:
    """Return one check's findings as a table; what is the same for all of them is said once, above it."""
    if not findings:
        return ""
    shared = [len({getattr(f, part) for f in findings}) == 1 for part in ("verdict", "meaning")]
    once = [findings[0].verdict.capitalize() + "." if shared[0] else "", findings[0].meaning if shared[1] else ""]
    heading = ["", "Where", "Printed", "Recomputed", "Arithmetic"]
    heading += [name for name, common in zip(("Verdict", "If you cite it"), shared, strict=True) if not common]
    folded = kind in FOLDED and len(findings) > FEW
    lines = [f"<details><summary>{KINDS[kind]} ({len(findings)})</summary>" if folded else f"### {KINDS[kind]}", ""]
    lines += [" ".join(filter(None, once)), ""] if any(once) else []
    rows = []
    for f in findings:
        cells = [f.name, f.where, f.printed, f.recomputed, f.arithmetic]
        cells += [text for text, common in zip((f.verdict, f.meaning), shared, strict=True) if not common]
        rows.append(map(_plain, cells))
    lines.append(markdown(heading, rows, "l"))
    return "\n".join([*lines, "", "</details>"] if folded else lines)


def _plain(text: str) -> str:
    """Escape the stars of a text, which are no markup."""
    return text.replace("*", "\\*")


def write() -> None:
    """Write ``papers/AUDIT.md``, and the names of new findings."""
    names_by_key = {**names(), **{key(finding): finding.name for finding in all_findings()}}
    with NAMES.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(FIELDS)
        lines.writerows((name, *identity) for identity, name in names_by_key.items())
    PATH.write_text(as_markdown(all_findings()), encoding="utf-8")


if __name__ == "__main__":
    write()
