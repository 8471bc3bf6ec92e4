"""Judge the papers' claims and this project's, in print and on measured models.

README has a summary, docs/findings.md all of them.

Every number follows from the claims of the tables, from records, or from the audit; `reproductions.documents.readme`
writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from common.console.text_tables import markdown
from common.records.results import Store
from common.utils import csv_rows
from reproductions.claims import verdicts as judge
from reproductions.render import claim_verdicts, show
from reproductions.render.claim_verdicts import ShownVerdict
from reproductions.spec import registry, subjects
from reproductions.spec.subjects import HEADS

if TYPE_CHECKING:
    from figures.claims_overview import ClaimLine

# Pretrained models with published records, and the toy model, which docs alone show.
SHOWN = (*subjects.PUBLISHED_MODELS, subjects.TOY.name)
WHAT = "a real model, none of the papers'"
SUPPORTED = "Supported on measured models"
SIDES = ("In the paper's own tables", *(f"On {HEADS[name]}" for name in SHOWN), SUPPORTED, "From")


@dataclass(frozen=True)
class SummaryLine:
    """A claim of a paper in a line, from its abstract, an insight or a main result.

    ids: of those claims of the target's table that say the same (`registry.Claim.id`).
    printed: other targets whose such claims count by the printed numbers, too; measured, they would be the same records.
    words, where: what the paper says, and in which part of it.
    """

    sentence: str
    target: str
    ids: tuple[str, ...]
    printed: tuple[str, ...] = ()
    words: str = ""
    where: str = ""

    def claims(self, content: dict) -> list[dict]:
        """Return this line's claims in a table's JSON form."""
        return [claim for claim in content["claims"] if claim["id"].rpartition("/")[2] in self.ids]

    def in_print(self, built: Mapping[str, dict]) -> list[dict]:
        """Return the claims that count by the printed numbers, from the JSON forms of all targets."""
        return [claim for target in (self.target, *self.printed) for claim in self.claims(built[target])]


EXTENSION = "extension"  # marks the lines of no paper in findings.csv


def _by_paper(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[SummaryLine, ...]]:
    """Return the lines of findings.csv by paper and `EXTENSION`, in order.

    Raises:
        KeyError: a line names another paper.
    """
    lines: dict[str, tuple[SummaryLine, ...]] = dict.fromkeys((*registry.PAPERS, EXTENSION), ())
    for row in map(dict, rows):
        paper, *id_lists = (row.pop(name) for name in ("paper", "ids", "printed"))
        ids, printed = (tuple(names.split()) for names in id_lists)
        lines[paper] += (SummaryLine(**row, ids=ids, printed=printed),)
    return lines


ABSTRACTS = _by_paper(csv_rows.read(Path(__file__).with_suffix(".csv")))
OURS = ABSTRACTS.pop(EXTENSION)
TITLE_OF_OURS = "Not in the papers"
IDEAS = {
    "linearpatch": "a Hadamard-diagonal-Hadamard matrix at the pruning interface, optionally distilled",
    "prunecomp": "iterative pruning, a magnitude factor fused into the weights",
    "laco": "later layers merged into an earlier one while the outputs stay similar",
    "reassessing": "seven ways to select layers; fine-tuning of only the head and the last layers",
}


def parts(store: Store) -> dict[str, str]:
    """Return the parts of documents by name.

    `papers`: the four papers with counts of verdicts and their sums, `chance`: how many comparisons chance alone would
    contradict; both for README. `findings`: all claims, for docs/findings.md.
    """
    papers = list(chain.from_iterable(ABSTRACTS.values()))
    built = _built_for([*papers, *OURS], store)
    groups = {registry.TITLES[paper]: sentences for paper, sentences in ABSTRACTS.items()} | {TITLE_OF_OURS: OURS}
    rows = {title: [row(line, built) for line in sentences] for title, sentences in groups.items()}

    def table(titles: Sequence[str], first: int, in_print: bool) -> str:
        """Return a table of numbered claims of these groups.

        Models that test none of them have no column; the toy model's results are on the site.
        """
        sides = sides_of([line for title in titles for line in rows[title]])[not in_print :]
        lines, number = [], first
        for title in titles:
            if in_print:
                lines.append(["", f"**{title}**", *("" for _ in sides), ""])
            for line in rows[title]:
                brief = line.brief()
                lines.append([str(number), line.sentence, *(brief[side] for side in sides), f"`{line.target}`"])
                number += 1
        heads = ["No.", "Claim", *(SIDES[side] for side in sides), SIDES[-1]]
        return markdown(heads, lines, "r" + "l" * (len(heads) - 1))

    of_papers = sum(map(len, ABSTRACTS.values()))
    claims = {paper: rows[registry.TITLES[paper]] for paper in ABSTRACTS}
    judged = [line for lines in claims.values() for line in lines]
    sides, lines = sides_of(judged), []
    for paper, judged_of_paper in claims.items():
        link, counts = f"[{registry.TITLES[paper]}](papers/{paper}/README.md)", tally(judged_of_paper)
        lines.append([link, IDEAS[paper], *(counts[side] for side in sides)])
    total = tally(judged)
    lines.append([f"All {of_papers} claims, as far as tested", "", *(total[side] for side in sides)])
    compared = with_interval(subjects.PUBLISHED_MODELS, built, papers)
    return {
        "papers": f"{COUNTED}\n\n{markdown(['Paper', 'Method', *(SIDES[side] for side in sides)], lines, 'llll')}",
        "chance": multiple_comparisons(compared),
        "findings": "\n\n".join(
            (
                own_models(store),
                SHORT_LEGEND,
                table([title for title in rows if title != TITLE_OF_OURS], 1, in_print=True),
                chance(compared),
                f"{TITLE_OF_OURS}:",
                table([TITLE_OF_OURS], 1 + of_papers, in_print=False),
                chance(with_interval(subjects.PUBLISHED_MODELS, built, OURS)),
                DEVELOPED,
            )
        ),
    }


def drawn(store: Store, folder: Path | None = None) -> list[Path]:
    """Draw README's picture of the papers' claims; return the files.

    Args:
        store: Results to judge the claims by. The toy model and the extensions' claims are left out.
        folder: Folder for the picture; None: that of `figures.style`.
    """
    from figures import claims_overview as picture
    from figures import style

    built = _built_for(chain.from_iterable(ABSTRACTS.values()), store)
    groups = {
        registry.TITLES[paper]: [row(line, built).boxes() for line in sentences]
        for paper, sentences in ABSTRACTS.items()
    }
    sides = {"In print": "the papers' own tables"} | {HEADS[name]: WHAT for name in subjects.PUBLISHED_MODELS}
    sides |= {"Supported": "on measured models"}
    return style.save(picture.draw(groups, sides), "claims-overview", folder)


COUNTED = (
    "The table counts what became of each paper's claims: whether they agree with the paper's own tables, and whether they "
    "hold as measured here. "
    "Claims without a number in the paper, or not tested on a model, are not counted."
)


def own_models(store: Store) -> str:
    """State in a sentence how many results are from the papers' models."""
    counts = [show.own_models(table, store) for table in registry.targets().values() if table.paper in registry.PAPERS]
    measured, cells = (sum(count[key] for count in counts) for key in ("measured", "cells"))
    if not measured:
        return "None of the papers' own models has been measured."
    return (
        f"Measured on the papers' own models: **{measured:,} of the {cells:,} numbers** that the tables have for them."
    )


def sides_of(rows: Sequence[JudgedLine]) -> list[int]:
    """Return the indices in `SIDES` of the papers' tables and of the pretrained models that test any of these claims."""
    tested = [name for name in subjects.PUBLISHED_MODELS if any(line.measured[name].tested for line in rows)]
    return [0, *(SIDES.index(f"On {HEADS[name]}") for name in tested)]


SHORT_LEGEND = """\
- "(1 of 4)": one of four comparisons supports the claim. Most claims need all four.
- Behind it: the comparison that supports the claim least, as the favoured row minus the other [95 % interval].
- Of perplexity a difference below zero favours the claim, of accuracy one above zero.
- Points are of accuracy. In LinearPatch, Prune&Comp and `league` they are of retained accuracy.
- Averages are over the measured tasks, in LaCo over two of 14. Retained accuracy leaves out those at chance level.
- Limit: the difference up to which the claim holds; where none is named, it is zero.
- No number: the paper prints none. –: not measured, or about other models. LP-1 and the like: findings of the audit."""


DEVELOPED = (
    "The refit and its variants were developed on SmolLM2 with results of these tables at hand. Intervals do not account "
    "for that."
)


def every(paper: str, store: Store) -> str:
    """Return every claim of a paper's tables and figures with its verdicts, in their order, as Markdown for its notebook."""
    lines = []
    for target, table in registry.targets().items():
        if table.paper == paper and table.claims:
            lines += [_row(claim["text"], [claim], target).cells() for claim in _built(store, target)["claims"]]
    return "\n".join([markdown(["Claim", *SIDES], lines, "l"), "", LEGEND])


LEGEND = (
    "In brackets: how many of a claim's comparisons (settings, metrics) support it. Most claims need all. Behind them stands "
    "the comparison that favours the claim least. Its 95 % confidence interval (CI) is paired over items. It covers the "
    "items, not another calibration text or training run. Points are of accuracy; in LinearPatch, Prune&Comp and `league` "
    "they are of the share of the dense model's score that is retained. Significant printed numbers differ by more than the "
    "standard errors of as many items, taken as independent. At least so many are significant. Limit: how far a number "
    "may fall behind, or has to be ahead. Inconclusive: one end of the interval is for the claim, the other against it. "
    f"{SUPPORTED}: on how many of the pretrained models that test the claim. No number: the paper prints none. Not tested: "
    "not measured, or about other models. Lines from one target rest on the same records."
)


def with_interval(
    names: Iterable[str], built: Mapping[str, dict], lines: Sequence[SummaryLine]
) -> dict[str, list[dict]]:
    """Return the comparisons behind these lines that have an interval, by model; models without any are left out."""
    compared = {}
    for name in names:
        claims = {
            claim["id"]: claim["judged"].get(name, {"comparisons": []})
            for line in lines
            for claim in line.claims(built[line.target])
        }
        compared[name] = [comparison for comparison in judge.distinct(claims.values()) if comparison["interval"]]
    return {name: comparisons for name, comparisons in compared.items() if comparisons}


def multiple_comparisons(compared: Mapping[str, Sequence[dict]]) -> str:
    """Explain for README that many comparisons are judged one by one, and how many chance alone would contradict.

    Args:
        compared: See `with_interval`.
    """
    comparisons = [comparison for of_model in compared.values() for comparison in of_model]
    if not comparisons:
        return ""
    against = sum(comparison["verdict"] == judge.CONTRADICTED for comparison in comparisons)
    return (
        f"Each of the {len(comparisons)} comparisons on measured models has its own 95 % interval, without a correction for "
        f"their number. {against} of them are significantly against their claim. If all differences were zero, on average at "
        f"most about {judge.by_chance(comparisons):.0f} would be so by chance."
    )


def chance(compared: Mapping[str, Sequence[dict]]) -> str:
    """Count the comparisons on each model that have an interval, and those that chance alone would contradict.

    Args:
        compared: See `with_interval`.
    """
    counts, by_chance = [], []
    for name, comparisons in compared.items():
        words = [comparison["verdict"] for comparison in comparisons]
        shares = ", ".join(f"{words.count(word)} {word}" for word in judge.WORDS if word in words)
        counts.append(f"{len(words)} on {HEADS[name]} ({shares})")
        by_chance.append(f"{judge.by_chance(comparisons):.1f}")
    if not counts:
        return ""
    return (
        f"Comparisons with an interval: {'; '.join(counts)}. If all differences were zero, chance would contradict at most "
        f"about {claim_verdicts.listed(by_chance)} of them, in this order."
    )


def _built(store: Store, target: str) -> dict:
    table = registry.get(target)
    return show.build(table, store, show.published(table, store))


def _built_for(sentences: Iterable[SummaryLine], store: Store) -> dict[str, dict]:
    """Return the JSON forms of all tables that these lines are judged by, by target."""
    return {target: _built(store, target) for target in {t for line in sentences for t in (line.target, *line.printed)}}


@dataclass(frozen=True)
class JudgedLine:
    """A line of the findings: a claim with its verdict in print and on each of `SHOWN`."""

    sentence: str
    printed: ShownVerdict
    measured: Mapping[str, ShownVerdict]
    target: str

    def supported(self) -> str:
        """Count the pretrained models that support the claim, of those that test it ("2 of 3")."""
        tested = [self.measured[name] for name in subjects.PUBLISHED_MODELS if self.measured[name].tested]
        supporting = sum(verdict.verdict == judge.SUPPORTED for verdict in tested)
        return f"{supporting} of {len(tested)}" if tested else judge.UNTESTED

    def cells(self) -> list[str]:
        """Return the cells of a table with the columns "Claim" and `SIDES`."""
        sides = (self.printed, *(self.measured[name] for name in SHOWN))
        return [self.sentence, *map(str, sides), self.supported(), f"`{self.target}`"]

    def brief(self) -> list[str]:
        """Return the verdicts in print and on the pretrained models, without the words of the legend."""
        sides = (self.printed, *(self.measured[name] for name in subjects.PUBLISHED_MODELS))
        shorter = (replace(side, counts=_numbers(side), effect=side.brief, several=False) for side in sides)
        return ["–" if side.verdict == judge.UNTESTED else str(side) for side in shorter]

    def boxes(self) -> ClaimLine:
        """Return the line of the summary picture, without the toy model."""
        from figures.claims_overview import ClaimLine

        sides = (self.printed, *(self.measured[name] for name in subjects.PUBLISHED_MODELS))
        sentence = re.sub(r" \([A-Z]{2}-\d+\)|: [A-Z]{2}-\d+(?=\))", "", self.sentence)  # the audit's numbers
        return ClaimLine(sentence, [*map(_box, sides), ("", self.supported())])


def _numbers(side: ShownVerdict, support: str = "") -> str:
    """Return how many comparisons support a claim; support: the words in place of "comparisons support it"."""
    return side.counts.replace(" comparisons support it", support).replace(", not enough", "")


def _box(side: ShownVerdict) -> tuple[str, str]:
    """Return a verdict and the words beside it, for a box of the picture; the colour says the verdict."""
    if not side.tested:
        return "", side.verdict
    case = "worst case: " * side.several + side.effect
    return side.verdict, "; ".join(filter(None, (_numbers(side, " support it"), case))) or "1 comparison"


def row(finding: SummaryLine, built: Mapping[str, dict]) -> JudgedLine:
    """Judge one line by its tables."""
    claims = finding.claims(built[finding.target])
    return _row(finding.sentence, claims, finding.target, printed=finding.in_print(built))


def _row(text: str, claims: Sequence[dict], target: str, printed: Sequence[dict] = ()) -> JudgedLine:
    measured = {name: claim_verdicts.on_model(claims, name) for name in SHOWN}
    return JudgedLine(text, claim_verdicts.in_print(printed or claims), measured, target)


def tally(rows: Sequence[JudgedLine]) -> list[str]:
    """Count these lines by verdict, in print and on each of `SHOWN`."""
    sides = [[line.printed for line in rows], *([line.measured[name] for line in rows] for name in SHOWN)]
    return list(map(_counts, sides))


def _counts(side: Sequence[ShownVerdict]) -> str:
    words = [verdict.verdict for verdict in side if verdict.tested]
    return ", ".join(f"{words.count(word)} {word}" for word in judge.WORDS if word in words) or "none tested"
