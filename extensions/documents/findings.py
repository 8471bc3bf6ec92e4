"""What was found here, in sentences: every number is a record's, or follows from the audit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.records.results import ROOT, Store
from extensions.documents import standings
from extensions.league import answers, grafts, texts, windows
from extensions.league import rows as league
from reproductions import audit
from reproductions.audit.engine import SLIP
from reproductions.reassessing.specs import AT_CUT, LAST3, LORA, Arm
from reproductions.render import chance_levels, show
from reproductions.spec import registry, reported, subjects
from reproductions.spec.columns import QUESTIONS

HEADS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct",
    "qwen2.5-coder-0.5b-instruct": "Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder-1.5b-instruct": "Qwen2.5-Coder-1.5B-Instruct",
    "standin": "the toy model",
}


def every(store: Store) -> list[str]:
    """What nobody else has said: the audit's headlines, what guessing retains, what a cosine does not see; the league, why
    answers do not follow perplexity, what to train after which cut, least squares against magnitudes, what a merge is worth,
    a changed prompt."""
    rest = (_league, _answers, _training, _least_squares, _merging, _prompts)
    return [*first(store), *filter(None, (tell(store) for tell in rest))]


def first(store: Store) -> list[str]:
    """Return the three that the site's first page has."""
    return list(filter(None, (_headlines(), chance_levels.finding(store), _massive(store))))


def _league(store: Store) -> str:
    """By the league's records on the published models."""
    told, drawn = [], []
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        for sparsity, below, compared in standings.won(standings.entries(store, subject, "league-seeds")):
            drawn.append(f"with {sparsity} layers removed in {below} of {compared}")
        for sparsity, ours, share, rival, worse in standings.leads(standings.entries(store, subject)):
            line = f"{sparsity}: {share} ({rival})"
            line += ", with neuron grafting" * (ours == league.CARRIED_REFIT)
            told.append(line + (f", where {' and '.join(worse)} did worse than no repair" if worse else ""))
    if not told:
        return ""
    repeated = (
        f" It was significantly below the best baseline {'; '.join(drawn)} draws of two calibration texts, on the same "
        "sequences."
    )
    return (
        "**A refit in closed form** ([league](docs/league.md)): least squares for the output matrices before the pruning "
        "interface and of the three layers after it. Average perplexity on SmolLM2-135M-Instruct, divided by that of the "
        f"best baseline without training, by layers removed: {'; '.join(told)}. Selection bias: layers and the refit's "
        "variant were chosen by these perplexities. The intervals do not cover that." + repeated * bool(drawn)
    )


def _answers(store: Store) -> str:
    """By `league-answers` on the published models: what the refit after [L] does to endings, at each number of layers."""
    from figures.answers import against_none

    told = []
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        changes = against_none(show.entries(answers.ANSWERS, store, subject, answers.ANSWERS.rows(subject)))
        name = league.name(league.WINDOW, league.REFIT_LONG)
        text, task = answers.TEXTS[subject.profile][0], answers.ASKED[subject.profile][0]
        right, wrong, gap = (kind.format(task) for kind in (answers.RIGHT, answers.WRONG, answers.GAP))
        told += [
            f"on {HEADS[subject.name]} with {sparsity} layers removed the refit takes "
            f"{_change(found[text], 1, sign=-1)} % off "
            f"{text}'s perplexity, {_change(found[right], 0, sign=-1)} nats per 1,000 characters off the loss of "
            f"HellaSwag's right endings and {_change(found[wrong], 0, sign=-1)} off that of the wrong ones (their gap "
            f"changes by {_change(found[gap], 0)})"
            for (sparsity, method), found in changes.items()
            if method == name and all(column in found for column in (text, right, wrong, gap))
        ]
    if not told:
        return ""
    return (
        "**On SmolLM2, with a contiguous block of 7 or 9 layers removed, the refit restores perplexity and hardly any "
        "accuracy** "
        "(`league-answers`, "
        f"[more](docs/league.md#why-answers-do-not-follow-perplexity)): {'; '.join(told)}.{_from_both(store)}"
    )


def _massive(store: Store) -> str:
    """By `figure-windows-league`: what [L]'s window costs where it takes the layer that writes the massive activation."""
    told: dict[tuple[str, int], list[str]] = {}
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        for entry in show.entries(windows.WINDOWS, store, subject, windows.WINDOWS.rows(subject)):
            record = next((one for name, one in entry["records"].items() if name.startswith("windows@")), None)
            if record is None or not {"writer", "cosine_carried"} <= record["values"].keys():
                continue
            found, start = record["values"], record["details"]["chosen"]["cosine"]
            removed = int(entry["sparsity"].partition("/")[0])
            if start <= found["writer"] < start + removed:
                told.setdefault((HEADS[subject.name], int(found["writer"])), []).append(
                    f"{entry['sparsity']}, layers {start:.0f} to {start + removed - 1:.0f}: {found['cosine']:.0f} → "
                    f"{found['cosine_carried']:.0f} → {found['cosine_kept']:.0f}"
                )
    if not told:
        return ""
    each = " ".join(f"On {model}, layer {layer}: {'; '.join(found)}." for (model, layer), found in told.items())
    return (
        "**Cosine-based selection can remove the layer that creates the first token's massive activation (one hidden state "
        "many times larger than all others). Neuron grafting copies a few of its neurons into the layer before the pruning "
        "interface. It restores nearly all of it from the next layer, less from further back** (`figure-windows-league`, "
        "[more](docs/league.md#neurons-carried-over)). Perplexity of eight "
        "sequences: the contiguous block removed → neurons grafted → the token's own state restored. "
        f"{each} {_refitted_with_them(store)}"
    ).strip()


def _refitted_with_them(store: Store) -> str:
    """By `league-graft`: the refit after the layers chosen with the neurons, against the refit after those chosen without and
    the best rival that is given them, too."""
    told: dict[str, list[str]] = {}
    rival = league.name(league.WINDOW, grafts.THEN.format(league.GHOSTED))
    others = {
        grafts.LEFT_REFIT: "after layers selected without it",
        rival: f"{league.LABELS[league.GHOSTED]} with it after the contiguous block",
    }
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        found = {(e["sparsity"], e["method"]): e for e in standings.entries(store, subject, "league-graft")}
        for (sparsity, method), entry in found.items():
            for other, words in others.items() if method == grafts.CHOSEN_BOTH else ():
                one = found.get((sparsity, other))
                if one is not None and one["scores"] != entry["scores"]:  # not of the same layers
                    told.setdefault(words, []).append(f"{standings.ratio(entry, one)} with {sparsity} layers removed")
    said = "; ".join(f"of {words}: {', '.join(ratios)}" for words, ratios in told.items())
    return f"The perplexity of the refit with neuron grafting (`league-graft`), divided by that {said}." if said else ""


def _from_both(store: Store) -> str:
    """By `league-texts`: what the refit from plain text and questions in turn answers of tasks that it did not read."""
    from figures.answers import difference

    cuts = {
        texts.BOTH: (texts.NONE, ""),
        texts.LEFT_BOTH: (texts.LEFT_NONE, " by least-residual selection"),
    }
    told = []
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        entries = show.entries(texts.TEXTS, store, subject, texts.TEXTS.rows(subject))
        found = {(e["sparsity"], e["method"]): e for e in entries if texts.AVERAGE in e["scores"]}
        for (sparsity, method), entry in found.items():
            cut, after = cuts.get(method, ("", ""))
            if (sparsity, cut) in found:
                change = _change(difference(entry, found[sparsity, cut], texts.AVERAGE), 1)
                told.append(f"{change} with {sparsity} layers removed{after}")
    if not told:
        return ""
    return (
        " Calibrated on plain text and HellaSwag's items in turn, its accuracy on four other tasks is higher than without "
        f"repair, in points ([`league-texts`](docs/league.md#what-to-calibrate-on)): {', '.join(told)}. The default was "
        "chosen by these items, so its lead may be smaller on others."
    )


def _change(change: Sequence[float], digits: int, sign: int = 1) -> str:
    """A change and its interval, or how much it takes off."""
    value, *ends = (f"{sign * part:.{digits}f}".replace("-", "−") for part in change)
    return f"{value} [{', '.join(ends[::sign])}]"


def _headlines() -> str:
    found = audit.findings()
    numbers = sum(len(reported.numbers(paper, table)) for paper in registry.PAPERS for table in reported.tables(paper))
    wrong = [one for one in found if one.headline]
    slips = [one for one in wrong if one.where.startswith("Abstract") and one.verdict == SLIP]
    first = {one.paper: one for one in reversed(slips)}
    quoted = " ".join(f"{one.name}: {one.headline}" for one in reversed(first.values()))
    return (
        f"**Headlines that their own tables do not carry.** [The audit](papers/AUDIT.md) of {numbers} numbers printed in "
        f"tables and text has {len(found)} findings, {sum(one.verdict == SLIP for one in found)} of them slips; {len(wrong)} "
        f"affect numbers that one might cite. In the abstracts: {quoted}"
    )


def _training(store: Store) -> str:
    """By Reassessing's Tables 2 and M on the published models, where the order of LoRA and of head and last layers turns."""
    from figures.curves import trained

    table, told, near = registry.get("figure-losses-reassessing"), [], []
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        ends: dict[str, dict[Arm, float]] = {}
        for entry in show.entries(table, store, subject, table.rows(subject)):
            if (curve := trained(entry)) is not None and curve.get("validation"):
                ends.setdefault(entry["spec"].metric, {})[entry["spec"].arm] = curve["validation"][-1][1]
        whole = {metric: arms for metric, arms in ends.items() if {LORA, LAST3} <= arms.keys()}
        if len({arms[LORA] < arms[LAST3] for arms in whole.values()}) > 1:
            lines = [
                f"after {metric} {', '.join(f'{arm.label[1:]} {arms[arm]:.2f}' for arm in sorted(arms, key=arms.get))}"
                for metric, arms in whole.items()
            ]
            told.append(f"on {HEADS[subject.name]} {'; '.join(lines)}")
            near += [arms[AT_CUT] < min(arms[LORA], arms[LAST3]) for arms in whole.values() if AT_CUT in arms]
    if not told:
        return ""
    nearest = (
        " The head and the three layers next to the first pruning interface (what CLP trains, arXiv 2510.23652) end below "
        "both, where the last three do not."
    )
    return (
        "**Whether LoRA or the head and last layers end lower depends on which layers were removed** "
        f"(`figure-losses-reassessing`, [why](papers/reassessing/README.md)). Held-out loss after as many "
        f"steps, {'; '.join(told)}." + nearest * (bool(near) and all(near))
    )


def _least_squares(store: Store) -> str:
    """By the records of LinearPatch's Figure 4 (ours), of every model that has them."""
    told = []
    for model, cells in _cells(store, "figure4-linearpatch").items():
        off = [math.exp(cells[f"{name}-off"]) for name in ("ratio", "least-squares", "alike-at-end")]
        told.append(
            f"on {model}, over {cells['cuts']:.0f} pruning interfaces, the ratio of magnitudes is off the best factor by "
            f"{off[0]:.2f} times, least squares by {off[1]:.2f}, the factor that makes the last states most similar to the "
            f"dense model's by {off[2]:.2f}; A lowers perplexity at {cells['patch-helps']:.0f} % "
            f"of them, a least-squares matrix at {cells['matrix-helps']:.0f} %"
        )
    return f"**Least squares instead of magnitudes** (`figure4-linearpatch`): {'; '.join(told)}." if told else ""


def _merging(store: Store) -> str:
    """By the records of LaCo's Figures 4 and 5: what a sum of layers' differences is made of, and what it gives."""
    shares, outputs = (_cells(store, f"figure{number}-laco") for number in (4, 5))
    told = []
    for model in shares.keys() & outputs.keys():
        share, found = shares[model]["distance-share"], outputs[model]
        merged, code, none = (
            f"{found[name]:.2f}".replace("-", "−")
            for name in ("least-merged-equation", "least-merged-code", "least-none")
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
    content = show.build(table, store, show.published(table, store), claims=False)
    for line in content["rows"]:
        cells = {content["column_ids"][label]: cell["reproduced"] for label, cell in line["cells"].items()}
        if line["subject"] != subjects.PAPER.name and None not in cells.values():
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
    for subject in map(subjects.of_model, subjects.PUBLISHED_MODELS):
        recipe = subjects.recipe(subject.model, subject)
        for task, metric in changed.values():
            before, after = (store.get(recipe, name) for name in (task, task.partition("_")[0]))
            if before is not None and after is not None and {before.status, after.status} == {"ok"}:
                one, two = (100 * record.values[metric] for record in (before, after))
                text += f" {subject.label} scores {one:.1f} with the old prompt and {two:.1f} with the new one."
    return text
