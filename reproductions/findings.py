"""One screen of findings: what the abstracts claim, on the printed numbers and on measured models, and what is new here.

Every number follows from the claims of the tables, from records, or from the audit; `reproductions.readme` writes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common import tables
from common.results import PUBLISHED, ROOT, Store
from reproductions import audit, declare, guessing, judge, registry, reported, settings, show
from reproductions.audit.engine import SLIP
from reproductions.columns import QUESTIONS
from reproductions.laco import claims as laco
from reproductions.league import answers, grafts, standings, texts, windows
from reproductions.league import rows as league

SHOWN = ("smollm2-135m-instruct", "standin")
HEADS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct", "standin": "the stand-in"}
SIDES = ("The paper's printed numbers", *(f"On {HEADS[name]}" for name in SHOWN), "From")


@dataclass(frozen=True)
class Finding:
    """A sentence of an abstract, and the claims of a target that say the same: those with one of ``words`` in them."""

    sentence: str
    target: str
    words: tuple[str, ...]


ABSTRACTS = {
    "linearpatch": (
        Finding("A patch revives layer-pruned models: question answering", "table1-linearpatch", ("unpatched",)),
        Finding("The same by perplexity", "table11-linearpatch", ("unpatched",)),
        Finding("It surpasses earlier methods", "table1-linearpatch", ("than SLEB",)),
        Finding("by 4 % with 5 of LLaMA-3-8B's layers pruned", "table1-linearpatch", ("by 4 %",)),
        Finding("Distillation boosts it further: questions", "table2-linearpatch", ("distillation adds",)),
        Finding("Distillation by perplexity", "table3-linearpatch", ("distillation lowers",)),
    ),
    "prunecomp": (
        Finding("Removing any layer induces a magnitude gap", "figure2-prunecomp", ("gains magnitude",)),
        Finding("It consistently enhances five metrics: perplexity", "table1-prunecomp", ("better with",)),
        Finding("The same for question answering", "table2-prunecomp", ("better with",)),
        Finding("Its loop makes both parts better", "table4-prunecomp", ("each help alone",)),
    ),
    "laco": (
        Finding("Over 80 % kept by three of four models (what they lose: LC-2)", "table2-laco", ("surpasses 80 %",)),
        Finding("It outperforms structured pruning methods", "table2-laco", ("both baselines",)),
        Finding("It inherits the parameters: post-training helps", "table3-laco", ("post-training raises",)),
        Finding("Adjacent layers are alike (its motivation)", "figure4-laco", ("are similar",)),
    ),
    "reassessing": (
        Finding("Removing the last layers is the best metric, with LoRA", "table1-reassessing", ("insight 1",)),
        Finding("The same without fine-tuning (ours)", "table1-reassessing", ("without fine-tuning",)),
        Finding("Head and last layers trained are above LoRA", "table2-reassessing", ("insight 2",)),
        Finding("Iterative pruning has no benefit", "tableA-reassessing", ("one-shot is above",)),
        Finding("The recipe is above earlier methods", "table4-reassessing", ("above every other",)),
    ),
}
OURS = (
    Finding("The refit lowers perplexity further than each rival, on each text", "league", ("each text by itself",)),
    Finding(
        "The refit lowers it further than LLM-Pruner and SliceGPT", "league", ("lower perplexity than what takes",)
    ),
    Finding(
        "No other choice of layers is lower, once refitted, than what a repair leaves least of",
        "league",
        ("set of least left",),
    ),
    Finding("The refit retains more of the questions than every rival", "league", ("than every rival",)),
    Finding("The refit retains more of them than the cut alone", "league", ("than no repair",)),
    Finding("The refit retains more of them than LLM-Pruner and SliceGPT", "league", ("retains more than what takes",)),
    Finding("Repairs widen the gap between right and wrong endings", "league-answers", ("widen the gap",)),
    Finding(
        "From plain text and questions in turn the refit answers more of other tasks than the cut alone",
        "league-texts",
        ("from both texts it answers more of the tasks",),
    ),
    Finding(
        "Leaving out what a repair leaves least of answers more of them than [L]'s window",
        "league-texts",
        ("the cut alone answers",),
    ),
    Finding(
        "Where the layer goes that writes the massive activation, its neurons, carried over, lower every repair's perplexity",
        "league-graft",
        ("carried over, they lower the perplexity",),
    ),
    Finding(
        "Carried over, they answer more questions than [L]'s cut", "league-graft", ("they answer more of the tasks",)
    ),
    Finding("Merging by Eq. 1 keeps more than leaving the layers out", "table2-laco", (f"Eq. 1 {laco.WORTH}",)),
    Finding("Merging as the official code does keeps more", "table2-laco", (f"the code's merge {laco.WORTH}",)),
    Finding(
        "A by least squares lowers perplexity further than A", "figure6-linearpatch", ("least squares in A's basis",)
    ),
)


def screen(store: Store) -> str:
    """The abstracts' claims by paper, then what is found here and nowhere else."""
    head = ["Claim", *SIDES]
    lines = []
    papers = [one for found in ABSTRACTS.values() for one in found]
    built = {target: _built(store, target) for target in {one.target for one in (*papers, *OURS)}}
    groups = {declare.title_of(paper): found for paper, found in ABSTRACTS.items()}
    for title, found in (groups | {"Not in the papers": OURS}).items():
        rows = [row(one, built[one.target]) for one in found]
        lines += [[f"**{title}**", *(f"**{cell}**" for cell in tally(rows)), ""], *rows]
    told = [
        "In bold: how many lines of a group have which verdict.",
        LEGEND,
        *(chance(name, built, papers) for name in SHOWN),
        measured_in(),
    ]
    told = ["", " ".join(filter(None, told)), "", *(f"- {text}" for text in ours(store))]
    return "\n".join([tables.pipes(head, lines, len(head)), *told])


def every(paper: str, store: Store) -> str:
    """Every claim of a paper's tables and figures with its verdicts, in their order, as Markdown; for its notebook."""
    head, lines = ["Claim", *SIDES], []
    for target, table in registry.targets().items():
        if table.paper == paper and table.claims:
            found = _built(store, target)["claims"]
            lines += [_judged(claim["text"], [claim], target, judge.UNTESTED) for claim in found]
    return "\n".join([tables.pipes(head, lines, len(head)), "", LEGEND])


LEGEND = (
    "In brackets: how many of the claim's comparisons (settings, metrics) hold. The number shown is the comparison that "
    "favours the claim least, with its 95 % interval: paired over items, or (~) from standard errors where outcomes per "
    "item were not kept, which is wider and leaves more within noise; it covers the items, not another calibration text "
    "or training run. Points: of what is retained of the dense model's score (LinearPatch, Prune&Comp, `league`), of "
    "accuracy elsewhere. Of printed numbers beyond noise: by standard errors of shares of as many questions, taken as "
    "independent, so at least so many are. Within noise: one end of the interval is for the claim, the other against it. "
    "·, not testable: not measured, or about other models. Lines from one target rest on the same records."
)


def chance(name: str, built: Mapping[str, dict], found: Sequence[Finding]) -> str:
    """How many comparisons of these lines on a subject have an interval, and how many chance alone would make fail."""
    claims = {
        (one.target, claim["text"]): claim["judged"].get(name, {"comparisons": []})
        for one in found
        for claim in _claims(one, built[one.target])
    }
    known = [one["verdict"] for verdict in claims.values() for one in verdict["comparisons"] if one["interval"]]
    if not known:
        return ""
    hold, fail, noise = (known.count(verdict) for verdict in (judge.HOLDS, judge.FAILS, judge.NOISE))
    return (
        f"Of the papers' claims {len(known)} comparisons on {HEADS[name]} have one: {hold} hold, {fail} fail, {noise} are "
        f"within noise; if all differences were zero, about {judge.CHANCE * len(known):.1f} would still seem to fail."
    )


def measured_in() -> str:
    """In what the published subjects are computed, and how long the real models' records took."""
    told = []
    for subject in (*map(settings.of_model, settings.PUBLISHED_MODELS), settings.STANDIN):
        paths = (PUBLISHED / subject.profile / subject.model).glob("*/*.json") if not subject.standin else ()
        hours = sum(json.loads(path.read_text())["provenance"].get("seconds", 0) for path in paths) / 3600
        name = HEADS[subject.name]
        took = (
            f" (its records took {hours:.0f} hours, beside searches and training, on one or two cores)" if hours else ""
        )
        told.append(f"{name} in {subject.dtype}{took}")
    return f"Computed: {', '.join(told)}."


def _built(store: Store, target: str) -> dict:
    table = registry.get(target)
    return show.build(table, store, show.published(table, store))


def _claims(finding: Finding, content: dict) -> list[dict]:
    return [claim for claim in content["claims"] if any(words in claim["text"] for words in finding.words)]


def row(finding: Finding, content: dict) -> list[str]:
    """One line: sentence, the printed side, every subject, the target."""
    return _judged(finding.sentence, _claims(finding, content), finding.target)


def tally(rows: Sequence[Sequence[str]]) -> list[str]:
    """On every side: how many of these lines hold, fail, or are within noise; what is not judged there is left out."""
    sides = list(zip(*rows))[1:-1]
    counts = [
        {words: sum(cell.startswith(verdict) for cell in side) for verdict, words in _SAID.items()} for side in sides
    ]
    return [", ".join(f"{number} {words}" for words, number in found.items() if number) or "·" for found in counts]


_SAID = {judge.HOLDS: "held", judge.FAILS: "failed", judge.NOISE: "within noise"}


def _judged(text: str, claims: Sequence[dict], target: str, untested: str = "·") -> list[str]:
    held = judge.HOLDS if all(claim["reported"] for claim in claims) else judge.FAILS
    compared = any(claim["reported_counts"][1] for claim in claims)
    printed = f"{held} ({tables.counted(claims)})" if compared else "no number"
    return [text, printed, *(_on(claims, name) or untested for name in SHOWN), f"`{target}`"]


def _on(claims: Sequence[dict], name: str) -> str:
    """The verdict of one or several claims on a subject (`judge.together`); '' for none."""
    worst = judge.together(claim["judged"][name] for claim in claims if name in claim["judged"])
    return f"{worst['verdict']} ({worst['holding']} of {worst['compared']}): {tables.effect(worst)}" if worst else ""


def ours(store: Store) -> list[str]:
    """What nobody else has said: the audit's headlines, what guessing retains, the league, least squares against magnitudes,
    what a merge is worth, a changed prompt, why answers do not follow perplexity, what a cosine does not see."""
    found = (
        _headlines(),
        guessing.finding(store),
        _league(store),
        _answers(store),
        _massive(store),
        _least_squares(store),
        _merging(store),
        _prompts(store),
    )
    return [text for text in found if text]


def _league(store: Store) -> str:
    """By the league's records on the published models."""
    told, drawn = [], []
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        for sparsity, below, compared in standings.won(standings.entries(store, subject, "league-seeds")):
            drawn.append(f"with {sparsity} gone in {below} of {compared}")
        for sparsity, share, rival, worse in standings.leads(standings.entries(store, subject)):
            line = f"{sparsity}: {share} ({rival})"
            told.append(line + (f", where {' and '.join(worse)} did worse than no repair" if worse else ""))
    if not told:
        return ""
    repeated = f" It was below the best rival by the whole interval {'; '.join(drawn)} repeats (two calibration texts)."
    return (
        "**A refit in closed form** ([league](docs/league.md)): the output matrices before the cut and of the three layers "
        "after it, refitted on what the repaired model feeds them. Average perplexity on SmolLM2-135M-Instruct as a share of "
        f"the best rival's without training, each as published, by layers removed: {'; '.join(told)}."
        + repeated
        * bool(drawn)
    )


def _answers(store: Store) -> str:
    """By `league-answers` on the published models, at its smaller number of layers: what the refit does to endings."""
    from figures.answers import against_none

    told = []
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        changes = against_none(show.entries(answers.ANSWERS, store, subject, answers.ANSWERS.rows(subject)))
        name = league.name("[L]", league.REFIT_LONG)
        sparsity = next((sparsity for sparsity, method in changes if method == name), None)
        found = changes.get((sparsity, name), {})
        text, task = answers.TEXTS[subject.profile][0], answers.ASKED[subject.profile][0]
        endings = [ending.format(task) for ending in (answers.RIGHT, answers.WRONG)]
        if not all(column in found for column in (text, *endings)):
            continue
        right, wrong = (_change(found[column], 0, sign=-1) for column in endings)
        told.append(
            f"on {HEADS[subject.name]} with {sparsity} gone the refit takes {_change(found[text], 1, sign=-1)} % off "
            f"{text}'s perplexity, {right} nats per 1,000 characters off the loss of HellaSwag's right endings and {wrong} "
            "off that of the wrong ones"
        )
    if not told:
        return ""
    return (
        "**Perplexity comes back, what tells right from wrong does not** (`league-answers`, "
        f"[more](docs/league.md#why-answers-do-not-follow-perplexity)): {'; '.join(told)}.{_from_both(store)}"
    )


def _massive(store: Store) -> str:
    """By `figure-windows-league`: what [L]'s window costs where it takes the layer that writes the massive activation."""
    told: dict[tuple[str, int], list[str]] = {}
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        for entry in show.entries(windows.WINDOWS, store, subject, windows.WINDOWS.rows(subject)):
            record = next((one for name, one in entry["records"].items() if name.startswith("windows@")), None)
            if record is None or not {"writer", "cosine_carried"} <= record["values"].keys():
                continue
            found, start = record["values"], record["details"]["chosen"]["cosine"]
            if start <= found["writer"] < start + int(entry["sparsity"].partition("/")[0]):
                told.setdefault((HEADS[subject.name], int(found["writer"])), []).append(
                    f"{entry['sparsity']}: {found['cosine']:.0f}, {found['cosine_carried']:.0f}, {found['cosine_kept']:.0f}"
                )
    if not told:
        return ""
    each = " ".join(f"On {model}, layer {layer}: {'; '.join(found)}." for (model, layer), found in told.items())
    return (
        "**A cosine does not see that a window takes the layer which writes the first token's massive activation, and a few "
        "neurons bring it back** (`figure-windows-league`, [more](docs/league.md#neurons-carried-over)). Perplexity without "
        "[L]'s window, then with that layer's neurons that write it carried over into the last layer before the cut, then "
        f"with the token's own state put back. {each}{_refitted_with_them(store)}"
    )


def _refitted_with_them(store: Store) -> str:
    """By `league-graft`: the refit after the layers chosen with the neurons, against the refit after those chosen without and
    the best rival that is given them, too."""
    told: dict[str, list[str]] = {}
    rival = league.name("[L]", grafts.THEN.format(league.GHOSTED))
    others = {grafts.LEFT_REFIT: "after layers chosen without", rival: f"{league.GHOSTED} with them after [L]"}
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        found = {(e["sparsity"], e["method"]): e for e in standings.entries(store, subject, "league-graft")}
        for (sparsity, method), entry in found.items():
            for other, words in others.items() if method == grafts.CHOSEN_BOTH else ():
                one = found.get((sparsity, other))
                if one is not None and one["scores"] != entry["scores"]:  # not of the same layers
                    told.setdefault(words, []).append(f"{standings.ratio(entry, one)} with {sparsity} gone")
    said = "; ".join(f"of {words}: {', '.join(ratios)}" for words, ratios in told.items())
    return (
        f" The refit with them (`league-graft`), as a share of its perplexity {said.removeprefix('of ')}."
        if said
        else ""
    )


def _from_both(store: Store) -> str:
    """By `league-texts`: what the refit from plain text and questions in turn answers of tasks that it did not read."""
    from figures.answers import difference

    cuts = {
        texts.BOTH: (texts.NONE, ""),
        texts.LEFT_BOTH: (texts.LEFT_NONE, " after the set of least left"),
        texts.TOOLS: (texts.CARRIED, " after that with neurons carried over"),
    }
    told = []
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        entries = show.entries(texts.TEXTS, store, subject, texts.TEXTS.rows(subject))
        found = {(e["sparsity"], e["method"]): e for e in entries if texts.AVERAGE in e["scores"]}
        for (sparsity, method), entry in found.items():
            cut, after = cuts.get(method, ("", ""))
            if (sparsity, cut) in found:
                change = _change(difference(entry, found[sparsity, cut], texts.AVERAGE), 1)
                told.append(f"{change} with {sparsity} gone{after}")
    if not told:
        return ""
    return (
        " From plain text and HellaSwag's items in turn it answers of four other tasks, in points more than the cut alone "
        f"([`league-texts`](docs/league.md#what-to-calibrate-on)): {', '.join(told)}."
    )


def _change(change: Sequence[float], digits: int, sign: int = 1) -> str:
    """A change and its interval, or how much it takes off."""
    value, *ends = (f"{sign * part:.{digits}f}".replace("-", "−") for part in change)
    return f"{value} [{', '.join(ends[::sign])}]"


def _headlines() -> str:
    found = audit.findings()
    numbers = sum(len(reported.numbers(paper, table)) for paper in registry.PAPERS for table in reported.tables(paper))
    wrong = [one for one in found if one.headline]
    first = {one.paper: one for one in reversed(wrong) if one.where.startswith("Abstract")}
    quoted = " ".join(f"{one.name}: {one.headline}" for one in reversed(first.values()))
    return (
        f"**Headlines that their own tables do not carry.** [The audit](papers/AUDIT.md) of {numbers} numbers printed in "
        f"tables and text has {len(found)} findings, {sum(one.verdict == SLIP for one in found)} of them slips; {len(wrong)} "
        f"affect numbers that one might cite. From the abstracts: {quoted}"
    )


def _least_squares(store: Store) -> str:
    """By the records of LinearPatch's Figure 4 (ours), of every model that has them."""
    told = []
    for model, cells in _cells(store, "figure4-linearpatch").items():
        off, less = (math.exp(cells[name]) for name in ("ratio is off by", "least squares is off by"))
        told.append(
            f"on {model}, over {cells['cuts']:.0f} cuts, the ratio of magnitudes is off the best factor by "
            f"{off:.2f} times, least squares by {less:.2f}; A lowers perplexity at {cells['A lowers PPL, % of cuts']:.0f} % "
            f"of the cuts, a least-squares matrix at {cells['matrix lowers PPL, %']:.0f} %"
        )
    return f"**Least squares instead of magnitudes** (`figure4-linearpatch`): {'; '.join(told)}." if told else ""


def _merging(store: Store) -> str:
    """By the records of LaCo's Figures 4 and 5: what a sum of layers' differences is made of, and what it gives."""
    shares, outputs = (_cells(store, f"figure{number}-laco") for number in (4, 5))
    told = []
    for model in shares.keys() & outputs.keys():
        share, found = shares[model]["mean share of uncorrelated"], outputs[model]
        merged, code, none = (
            f"{found[name]:.2f}".replace("-", "−")
            for name in ("least merged, Eq. 1 (b)", "least merged, code (b)", "no layer")
        )
        told.append(
            f"on {model} the matrices of adjacent layers are {share:.2f} % as far apart as unrelated ones; the output of "
            f"four layers merged by Eq. 1 has a cosine of {merged} to that of the last at worst, of the code's merge {code}, "
            f"of no layer at all {none}"
        )
    if not told:
        return ""
    return f"**What a merge is made of** (`figure4-laco`, `figure5-laco`): {'; '.join(sorted(told))}."


def _cells(store: Store, target: str) -> dict[str, dict[str, float]]:
    """Model -> column -> value, of the measured models whose first row is whole."""
    table, found = registry.get(target), {}
    for line in show.build(table, store, show.published(table, store), claims=False)["rows"]:
        cells = {name: cell["reproduced"] for name, cell in line["cells"].items()}
        if line["subject"] != settings.PAPER.name and None not in cells.values():
            label = HEADS.get(line["subject"], line["model"])
            found.setdefault(label, cells)
    return found


def _prompts(store: Store) -> str:
    """Which tasks of LinearPatch's suite lm-eval asks otherwise today, and what that does to the dense model's score."""
    own = {path.stem for path in (ROOT / "common" / "evaluation" / "tasks").rglob("*.yaml")}
    changed = {label: place for label, place in QUESTIONS.items() if place[0] in own}
    if not changed:
        return ""
    names = ", ".join(changed)
    text = (
        f"**A prompt that drifted.** {len(changed)} of the {len(QUESTIONS)} tasks behind the papers' averages ({names}) is "
        "asked otherwise by today's lm-eval than by the release that the papers used; here it is pinned."
    )
    for subject in map(settings.of_model, settings.PUBLISHED_MODELS):
        recipe = settings.recipe(subject.model, subject)
        for task, metric in changed.values():
            before, after = (store.get(recipe, name) for name in (task, task.partition("_")[0]))
            if before is not None and after is not None and {before.status, after.status} == {"ok"}:
                one, two = (100 * record.values[metric] for record in (before, after))
                text += f" {subject.label} scores {one:.1f} with the old prompt and {two:.1f} with the new one."
    return text
