"""What the papers claim in abstracts, insights and main results, and what is claimed here, on the printed numbers and on
measured models: README's summary, and docs/findings.md with all of it.

Every number follows from the claims of the tables, from records, or from the audit; `reproductions.documents.readme`
writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.records.published import Published
from common.records.results import PUBLISHED, Store
from common.utils.text_tables import markdown
from extensions.documents import findings
from extensions.documents.findings import HEADS
from reproductions.claims import verdicts as judge
from reproductions.prunecomp.claims import consistent
from reproductions.render import show, tables
from reproductions.spec import printed_rows, registry, subjects

# Pretrained models with published records, and the toy model, which docs alone show.
SHOWN = (*subjects.PUBLISHED_MODELS, subjects.STANDIN.name)
WHAT = "a real model, none of the papers'"
SUPPORTED = "Supported on measured models"
SIDES = ("In the paper's own tables", *(f"On {HEADS[name]}" for name in SHOWN), SUPPORTED, "From")
_TOY = 2 + SHOWN.index(subjects.STANDIN.name)  # its cell in a row


@dataclass(frozen=True)
class SummaryLine:
    """A claim of a paper in a line, from its abstract, an insight or a main result.

    ids: of those claims of the target's table that say the same (`registry.Claim.id`).
    printed: other targets whose such claims count by the printed numbers, too; measured, they would be the same records.
    """

    sentence: str
    target: str
    ids: tuple[str, ...]
    printed: tuple[str, ...] = ()

    def claims(self, content: dict) -> list[dict]:
        """Those of a table's JSON form."""
        return [claim for claim in content["claims"] if claim["id"].rpartition("/")[2] in self.ids]

    def in_print(self, built: Mapping[str, dict]) -> list[dict]:
        """Those that count by the printed numbers, from the JSON forms of all targets."""
        return [claim for target in (self.target, *self.printed) for claim in self.claims(built[target])]


_EACH_METRIC = tuple(claim.id for claim in consistent("AVG"))
ABSTRACTS = {
    "linearpatch": (
        SummaryLine(
            "A patch at the cut brings back answers to questions",
            "table1-linearpatch",
            ("patch-s-beats-cut", "patch-l-beats-cut"),
        ),
        SummaryLine(
            "A patch at the cut brings back perplexity",
            "table11-linearpatch",
            ("patch-s-beats-cut", "patch-l-beats-cut"),
        ),
        SummaryLine(
            "Its better variant answers more than every earlier method",
            "table1-linearpatch",
            ("better-variant-beats-earlier-methods",),
        ),
        SummaryLine(
            "Ahead by 4 %, 5 of LLaMA-3-8B's layers gone (if relative; in points by 3: LP-1)",
            "table1-linearpatch",
            ("abstract-llama-3-8b",),
        ),
        SummaryLine(
            "Rotation and scales each lower perplexity", "table5-linearpatch", ("every-ingredient-lowers-perplexity",)
        ),
        SummaryLine("Distilling the patch brings back more answers", "table2-linearpatch", ("distillation-helps",)),
        SummaryLine("Distilling the patch lowers perplexity further", "table3-linearpatch", ("distillation-helps",)),
        SummaryLine(
            "Distilled, it answers more than LLM-Streamline, trained alike",
            "table2-linearpatch",
            ("distilled-beats-streamline-ffn",),
        ),
        SummaryLine(
            "Distilled, its perplexity is below LLM-Streamline's, trained alike",
            "table3-linearpatch",
            ("distilled-beats-streamline-ffn",),
        ),
    ),
    "prunecomp": (
        SummaryLine(
            "Every layer adds magnitude (any amount; the abstract: 'significant')",
            "figure2-prunecomp",
            ("every-layer-gains",),
        ),
        SummaryLine(
            "It improves all of five metrics: perplexity",
            "table1-prunecomp",
            _EACH_METRIC,
            ("tableA1-prunecomp",),
        ),
        SummaryLine(
            "It improves all of five metrics: questions",
            "table2-prunecomp",
            _EACH_METRIC,
            ("tableA2-prunecomp",),
        ),
        SummaryLine(
            "BI, 5 of LLaMA-3-8B's layers: nearly half the perplexity, 4.01 points more",
            "table2-prunecomp",
            ("abstract-llama-3-8b",),
            ("table1-prunecomp",),
        ),
        SummaryLine("Loop and factor each help, and most together", "table4-prunecomp", ("each-part-helps",)),
    ),
    "laco": (
        SummaryLine("Over 80 % kept at pruning ratios of 25-30 % (LC-2)", "table2-laco", ("abstract-over-80-percent",)),
        SummaryLine("Merging keeps more than structured pruning", "table2-laco", ("beats-both-baselines",)),
        SummaryLine(
            "Post-training raises the average (of LLaMA-2-7B; not of Baichuan2-7B)",
            "table3-laco",
            ("post-training-helps",),
        ),
        SummaryLine(
            "Adjacent layers' weights are alike (half its motivation; limit ours)",
            "figure4-laco",
            ("adjacent-matrices-similar",),
        ),
    ),
    "reassessing": (
        SummaryLine(
            "Removing the last layers is ahead of all other choices, with LoRA (in print at 25 and 50 %)",
            "table1-reassessing",
            ("reverse-order-best",),
            ("tableL-reassessing",),
        ),
        SummaryLine(
            "Without training it is ahead of SLEB and LLM-Pruner",
            "tableK-reassessing",
            ("reverse-order-beats-sleb-and-llm-pruner",),
        ),
        SummaryLine(
            "Training head and last layers answers more than LoRA", "table2-reassessing", ("partial-beats-lora",)
        ),
        SummaryLine("The same after Taylor's choice of layers", "tableM-reassessing", ("partial-beats-lora",)),
        SummaryLine(
            "Iterative pruning gains no point over one shot (limit ours)",
            "tableA-reassessing",
            ("iterating-has-no-benefit",),
            ("tableN-reassessing",),
        ),
        SummaryLine(
            "The recipe answers more than earlier methods (starred rows left out: RE-72)",
            "table4-reassessing",
            ("recipe-beats-others",),
            ("table5-reassessing",),
        ),
        SummaryLine(
            "In a trained model shallower layers have larger gradients (its theory)",
            "figure-theory-reassessing",
            ("trained-gradients-fall",),
        ),
    ),
}
OURS = (
    SummaryLine(
        "The refit lowers perplexity further than each rival, on each text",
        "league",
        ("refit-beats-rivals-on-each-text",),
    ),
    SummaryLine("The refit lowers it further than LLM-Pruner and SliceGPT", "league", ("refit-beats-slices",)),
    SummaryLine(
        "Refitted, no other choice of layers is 1 % below the set of which a repair leaves least",
        "league",
        ("least-left-is-best-choice",),
    ),
    SummaryLine(
        "The refit retains more of the questions than every rival", "league", ("refit-retains-more-than-rivals",)
    ),
    SummaryLine("The refit retains more of them than the cut alone", "league", ("refit-retains-more-than-none",)),
    SummaryLine(
        "The refit retains more of them than LLM-Pruner (stand-in: and SliceGPT)",
        "league",
        ("refit-retains-more-than-slices",),
    ),
    SummaryLine("Repairs widen the gap between right and wrong endings", "league-answers", ("gap-widens",)),
    SummaryLine(
        "From plain text and questions in turn the refit answers more of other tasks than the cut alone",
        "league-texts",
        ("both-texts-beat-cut",),
    ),
    SummaryLine(
        "The cut alone answers more of them after the set of least left than after [L]'s window",
        "league-texts",
        ("least-left-cut-beats-l-cut",),
    ),
    SummaryLine(
        "After [L]'s 8 and 9 layers, among them the one that writes the massive activation, its neurons, carried over, lower "
        "the perplexity of the cut and of five repairs",
        "league-graft",
        ("carried-lowers-perplexity",),
    ),
    SummaryLine("Carried over, they answer more questions than [L]'s cut", "league-graft", ("carried-answers-more",)),
    SummaryLine(
        "Removing the last layers is the best choice of seven, not fine-tuned",
        "table1-reassessing",
        ("reverse-order-best-untrained",),
    ),
    SummaryLine(
        "Merging by Eq. 1 keeps more than leaving the layers out", "table2-laco", ("equation-beats-leaving-out",)
    ),
    SummaryLine("Merging as the official code does keeps more", "table2-laco", ("code-beats-leaving-out",)),
    SummaryLine(
        "The FFN that LinearPatch is compared with is below the cut alone, trained as printed",
        "table3-linearpatch",
        ("ffn-beats-cut",),
    ),
    SummaryLine(
        "That FFN is below the cut alone where it leaves massive tokens as they are",
        "table3-linearpatch",
        ("spared-ffn-beats-cut",),
    ),
    SummaryLine(
        "LinearPatch, trained, retains more of the questions than that FFN leaving massive tokens as they are",
        "table2-linearpatch",
        ("distilled-beats-spared-ffn",),
    ),
    SummaryLine(
        "A by least squares lowers perplexity further than A", "figure6-linearpatch", ("least-squares-beats-ratio",)
    ),
    SummaryLine(
        "A lowers perplexity further where massive tokens stay as they are",
        "figure6-linearpatch",
        ("spared-beats-patch",),
    ),
    SummaryLine(
        "A on massive tokens alone lowers perplexity", "figure6-linearpatch", ("massive-tokens-alone-beat-cut",)
    ),
)


TITLE_OF_OURS = "Not in the papers"


# Each sentence of `ABSTRACTS` in the papers' own words, and where it stands.
QUOTES = {
    "linearpatch": (
        ("retains up to 94.15% performance of the original model", "abstract"),
        ("LinearPatch[L] consistently outperforms or matches LLM-Streamline", "section 4.3"),
        ("surpassing existing state-of-the-art methods by 4%", "abstract"),
        ("surpassing existing state-of-the-art methods by 4%", "abstract"),
        ("each component of LINEARPATCH contributes significantly to the overall performance", "section 4.4"),
        ("LINEARPATCH can be further boosted to 95.16% within 30 minutes", "abstract"),
        ("LinearPatch[L] +FT achieves an average perplexity of 17.27", "section 4.3"),
        ("achieves an average accuracy of 65.23%, outperforming LLM-Streamline (63.05%)", "section 4.3"),
        ("significantly outperforming LLM-Streamline (24.58)", "section 4.3"),
    ),
    "prunecomp": (
        ("removing any layer induces a significant magnitude gap in hidden states", "abstract"),
        ("Prune&Comp consistently enhances existing layer pruning metrics", "abstract"),
        ("Prune&Comp consistently enhances existing layer pruning metrics", "abstract"),
        ("nearly halves the perplexity and retains 93.19% [...], outperforming the baseline by 4.01%", "abstract"),
        ("simply compensating this magnitude gap (+MagComp) boosts the performance", "section on magnitude"),
    ),
    "laco": (
        ("maintains an average task performance of over 80% at pruning ratios of 25-30%", "abstract"),
        ("significantly outperforming existing state-of-the-art structured pruning methods", "abstract"),
        ("effectively inherits the parameters of the original model", "abstract"),
        ("high similarity in parameters and representations between adjacent layers", "section 4.2"),
    ),
    "reassessing": (
        ("simply pruning the last several layers performs better than many complex pruning metrics", "section 1"),
        ("strong competitiveness even as a pure, retraining-free compression technique", "appendix, Table K"),
        ("Partial-layer fine-tuning can serve as an alternative to LoRA, achieving better performance", "insight 2"),
        ("verify the robustness of our partial-layer fine-tuning", "appendix, Table M"),
        ("iterative pruning has no benefit", "appendix, Table A"),
        ("our method outperforms existing state-of-the-art pruning methods", "section 1"),
        ("their gradients do not contribute much", "section 4"),
    ),
}


def quoted() -> str:
    """Return the papers' own sentences behind the claims, as a Markdown list."""
    lines = [
        f"1. {printed_rows.title_of(paper)}, {one.sentence}: “{quote}” ({place})"
        for paper, found in ABSTRACTS.items()
        for one, (quote, place) in zip(found, QUOTES[paper], strict=True)
    ]
    return "\n".join(["The papers' own words behind each claim:\n", *lines])


def parts(store: Store) -> dict[str, str]:
    """Return the parts of documents by name.

    `summary`: counts of verdicts and the picture, for README. `findings`: all claims and findings, for docs/findings.md.
    `verdict-PAPER`: what became of a paper's claims, for the paper's README.
    """
    papers = [one for found in ABSTRACTS.values() for one in found]
    targets = {target for one in (*papers, *OURS) for target in (one.target, *one.printed)}
    built = {target: _built(store, target) for target in targets}
    groups = {printed_rows.title_of(paper): found for paper, found in ABSTRACTS.items()} | {TITLE_OF_OURS: OURS}
    rows = {title: [row(one, built) for one in found] for title, found in groups.items()}

    def compared(names: Sequence[str]) -> list[str]:
        chances = list(filter(None, (chance(name, built, papers) for name in names)))
        return [f"Comparisons of the papers' claims with an interval: {'; '.join(chances)}."] if chances else []

    def table() -> str:
        lines = []
        for title, found in rows.items():
            lines += [[*(f"**{cell}**" if cell else "" for cell in (title, *tally(found))), ""], *found]
        return markdown(["Claim", *SIDES], lines, "l")

    verdicts = {
        f"verdict-{paper}": f"Of its {len(found)} claims on the [summary](../../README.md#what-reproduced), {by_side(found)}."
        for paper, found in ((paper, rows[printed_rows.title_of(paper)]) for paper in ABSTRACTS)
    }
    return verdicts | {
        "summary": f"{own_models(store)} {lead(rows)}\n\n{PICTURE}",
        "findings": "\n\n".join(
            (
                own_models(store),
                table(),
                " ".join((TALLIED, LEGEND, *compared(SHOWN), measured_in())),
                quoted(),
                listed(findings.every(store)),
            )
        )
        .replace("](docs/", "](")
        .replace("](papers/", "](../papers/"),
    }


def drawn(part: str, folder: Path | None = None) -> list[Path]:
    """Draw README's picture of the papers' claims; returns the files.

    Args:
        part: The part `findings` that `parts` wrote. The toy model's column and the extensions' claims are left out.
        folder: Where the picture goes; None: where `figures.style` puts pictures.
    """
    from figures import screen as picture
    from figures import style

    _, _, *rows = [_cells(line) for line in part.splitlines() if line.startswith("| ")]
    groups: dict[str, list[picture.ClaimLine]] = {}
    for claim, *cells, _ in map(_without_toy, rows):
        if claim == f"**{TITLE_OF_OURS}**":
            break
        if claim.startswith("**"):
            lines = groups.setdefault(claim.strip("*"), [])
        else:
            lines.append(picture.ClaimLine(claim, [_shortened(cell) for cell in cells]))
    sides = {"In print": "the papers' own tables"} | {HEADS[name]: WHAT for name in subjects.PUBLISHED_MODELS}
    sides |= {"Supported": "on measured models"}
    return style.save(picture.draw(groups, sides), "screen", folder)


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table, empty ones too."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split(" | ")]


def _shortened(cell: str) -> tuple[str, str]:
    """A cell of the findings' table as verdict and the rest, for a box of the picture."""
    verdict = next((verdict for verdict in _SAID if cell.startswith(verdict)), "")
    rest = cell[len(verdict) :].strip().replace("(", "", 1).replace(")", "", 1) if verdict else cell
    for words in (" comparisons", "worst case ", "1 comparison: "):  # the legend says so
        rest = rest.replace(words, "")
    return verdict, "not tested" if rest == "·" else rest


def listed(found: Sequence[str]) -> str:
    """Return findings as a Markdown list."""
    return "\n".join(f"- {one}" for one in found)


PICTURE = "![What became of every claim of the papers, in print and on measured models](figures/rendered/screen.svg)"


def lead(rows: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """How many of the papers' claims have which verdict, in a sentence."""
    papers = [row for title, found in rows.items() if title != TITLE_OF_OURS for row in found]
    return f"Of {len(papers)} claims of the four papers, {by_side(papers)}."


def own_models(store: Store) -> str:
    """Say how many cells were measured on the papers' own models, in a sentence."""
    found = [show.own_models(table, store) for table in registry.targets().values() if table.paper in registry.PAPERS]
    measured, cells = (sum(one[key] for one in found) for key in ("measured", "cells"))
    return f"Measured on the papers' own models: **{measured:,} of {cells:,} cells**."


def by_side(rows: Sequence[Sequence[str]]) -> str:
    """How many of these lines have which verdict in print, and on each measured model."""
    print_, *measured = list(zip(*rows))[1:-1]
    holding, failing = (sum(cell.startswith(verdict) for cell in print_) for verdict in (judge.HOLDS, judge.FAILS))
    left = len(print_) - holding - failing
    in_print = f"the papers' own tables agree with **{holding}** and contradict **{failing}**"
    told = [in_print + f" ({left} have no number)" * bool(left)]
    for name, found, cells in zip(subjects.PUBLISHED_MODELS, tally(rows)[1:], measured):
        left = sum(not cell.startswith(tuple(_SAID)) for cell in cells)
        told.append(f"measured on {HEADS[name]} **{found}**" + f" ({left} not tested)" * bool(left))
    return "; ".join(told)


TALLIED = "In bold: how many lines of a group have which verdict."


def every(paper: str, store: Store) -> str:
    """Every claim of a paper's tables and figures with its verdicts, in their order, as Markdown; for its notebook."""
    head, lines = ["Claim", *SIDES], []
    for target, table in registry.targets().items():
        if table.paper == paper and table.claims:
            found = _built(store, target)["claims"]
            lines += [_judged(claim["text"], [claim], target, judge.UNTESTED) for claim in found]
    return "\n".join([markdown(head, lines, "l"), "", LEGEND])


LEGEND = (
    "In brackets: how many of the claim's comparisons (settings, metrics) are for it. Most claims need all. "
    "The number shown is the comparison that favours the claim least, with its 95 % interval, paired over items; it covers "
    "the items, not another calibration "
    "text or training run. Points: of what is retained of the dense model's score (LinearPatch, Prune&Comp, `league`), "
    "of accuracy elsewhere. Of printed numbers beyond noise: by standard errors of shares of as many questions, taken as "
    "independent, so at least so many are, for the claim and, where that is said, against it. Limit: how far it may fall "
    "behind, or has to be ahead. Within noise: one end of the interval is for the claim, the other against it. "
    "Supported: on how many of the pretrained models on which it was tested the claim holds. "
    "No number: the paper prints none. ·, not testable: not measured, or about other models. Lines from one target rest on "
    "the same records."
)


def chance(name: str, built: Mapping[str, dict], found: Sequence[SummaryLine]) -> str:
    """How many comparisons of these lines on a subject have an interval, and how many chance alone would make fail."""
    claims = {
        claim["id"]: claim["judged"].get(name, {"comparisons": []})
        for one in found
        for claim in one.claims(built[one.target])
    }
    compared = [one for one in judge.distinct(claims.values()) if one["interval"]]
    known = [one["verdict"] for one in compared]
    if not known:
        return ""
    hold, fail, noise = (known.count(verdict) for verdict in (judge.HOLDS, judge.FAILS, judge.NOISE))
    return (
        f"on {HEADS[name]} {len(known)}: {hold} hold, {fail} fail, {noise} are within noise; were all differences zero, "
        f"at most about {judge.by_chance(compared):.1f} would fail by chance"
    )


def measured_in() -> str:
    """In what the published subjects are computed, and how long the real models' records took."""
    told, published = [], Published(PUBLISHED)
    for subject in (*map(subjects.of_model, subjects.PUBLISHED_MODELS), subjects.STANDIN):
        records = () if subject.standin else (one for one in published if one["recipe"]["model"] == subject.model)
        hours = sum(one["provenance"].get("seconds", 0) for one in records) / 3600
        name = HEADS[subject.name]
        took = (
            f" (its records took {hours:.0f} hours, beside searches and training, on one or two cores)" if hours else ""
        )
        told.append(f"{name} in {subject.dtype}{took}")
    return f"Computed: {', '.join(told)}."


def _built(store: Store, target: str) -> dict:
    table = registry.get(target)
    return show.build(table, store, show.published(table, store))


def row(finding: SummaryLine, built: Mapping[str, dict]) -> list[str]:
    """One line: sentence, the printed side, every subject, the target."""
    claims = finding.claims(built[finding.target])
    return _judged(finding.sentence, claims, finding.target, printed=finding.in_print(built))


def tally(rows: Sequence[Sequence[str]]) -> list[str]:
    """On every side: how many of these lines hold, fail, or are within noise; what is not judged there is left out.

    Nothing of the last side, which counts models.
    """
    *sides, _ = list(zip(*rows))[1:-1]
    counts = [
        {words: sum(cell.startswith(verdict) for cell in side) for verdict, words in _SAID.items()} for side in sides
    ]
    told = [", ".join(f"{number} {words}" for words, number in found.items() if number) or "·" for found in counts]
    return [*told, ""]


_SAID = {judge.HOLDS: "held", judge.FAILS: "failed", judge.NOISE: "within noise"}


def _judged(
    text: str, claims: Sequence[dict], target: str, untested: str = "·", printed: Sequence[dict] = ()
) -> list[str]:
    printed = printed or claims
    held = judge.HOLDS if all(claim["reported"] for claim in printed) else judge.FAILS
    compared = any(claim["reported_counts"][1] for claim in printed)
    by_print = f"{held} ({tables.counted(printed)})" if compared else "no number"
    cells = {name: _on(claims, name) for name in SHOWN}
    return [text, by_print, *(cell or untested for cell in cells.values()), supported(cells), f"`{target}`"]


def supported(cells: Mapping[str, str]) -> str:
    """On how many of the pretrained models that test a claim it holds, by the cells of each; '' where none tests it."""
    tested = [cells[name] for name in subjects.PUBLISHED_MODELS if cells[name].startswith(tuple(_SAID))]
    return f"{sum(cell.startswith(judge.HOLDS) for cell in tested)} of {len(tested)}" if tested else "·"


def _without_toy(cells: Sequence[str]) -> list[str]:
    return [*cells[:_TOY], *cells[_TOY + 1 :]]


def _on(claims: Sequence[dict], name: str) -> str:
    """The verdict of one or several claims on a subject (`judge.together`); '' for none."""
    worst = judge.together(claim["judged"][name] for claim in claims if name in claim["judged"])
    if worst is None:
        return ""
    case = "worst case " * (worst["compared"] > 1)
    counted = tables.supporting(worst["holding"], worst["compared"], worst["verdict"] == judge.FAILS)
    return f"{worst['verdict']} ({counted}): {case}{tables.effect(worst)}"
