"""The audit as text: for the terminal, as JSON, and as ``papers/AUDIT.md``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from common.results import ROOT
from reproductions import reported
from reproductions.audit import findings as all_findings
from reproductions.audit.findings import PAPER_NAMES, VERDICTS, Finding

PATH = ROOT / "papers" / "AUDIT.md"
KINDS = {
    "claim": "Sentences against the tables they sum up",
    "derived column": "Averages and retained performance that the row's own cells do not give",
    "averages against scores": "Averages that the table of scores does not give",
    "share of parameters": "Shares of removed parameters that the model's shape does not give",
    "printed twice, differently": "One configuration, two numbers",
    "row printed twice": "Two configurations, one row",
    "no k of n": "Accuracies that no number of right answers gives",
    "standard error": "Standard errors that do not belong to the accuracy",
}


def as_json(found: Sequence[Finding]) -> str:
    """One object per finding."""
    return json.dumps([finding.as_dict() for finding in found], indent=1) + "\n"


def as_text(found: Sequence[Finding]) -> str:
    """For the terminal: one block per finding, grouped by paper."""
    blocks = [_summary(found)]
    for paper, title in PAPER_NAMES.items():
        blocks.append(f"{title}\n{'-' * len(title)}")
        for f in (f for f in found if f.paper == paper):
            lines = [f"{f.name}  {f.where}  [{f.verdict}]", f"    printed {f.printed}; recomputed {f.recomputed}"]
            lines += [f"    {text}" for text in (f.arithmetic, f.meaning) if text]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _summary(found: Sequence[Finding]) -> str:
    checked = sum(len(reported.numbers(paper, table)) for paper in PAPER_NAMES for table in reported.tables(paper))
    verdicts = Counter(f.verdict for f in found)
    counted = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v])
    return f"{len(found)} findings in {checked} printed numbers: {counted}."


def as_markdown(found: Sequence[Finding]) -> str:
    """The report that is kept beside the papers' code."""
    blocks = [
        "# The papers' arithmetic, checked",
        f"{_summary(found)} `make audit` recomputes all of it from the transcribed numbers in `papers/*/reported`; "
        "nothing here is listed by hand. A finding says that two printed numbers cannot both be right, or that a number "
        "cannot come from what it is said to come from; it does not say why. Where rounding can explain a difference, "
        "there is no finding.",
    ]
    for paper, title in PAPER_NAMES.items():
        mine = [f for f in found if f.paper == paper]
        blocks.append(f"## {title}\n\n{len(mine)} findings.")
        for kind, heading in KINDS.items():
            some = [f for f in mine if f.kind == kind]
            if not some:
                continue
            lines = [f"### {heading}", "", "| | Where | Printed | Recomputed | Arithmetic | Verdict | If you cite it |"]
            lines.append("| --- | --- | --- | --- | --- | --- | --- |")
            for f in some:
                cells = (f.name, f.where, f.printed, f.recomputed, f.arithmetic, f.verdict, f.meaning)
                lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |")
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def write() -> None:
    """Write ``papers/AUDIT.md``."""
    PATH.write_text(as_markdown(all_findings()), encoding="utf-8")


if __name__ == "__main__":
    write()
