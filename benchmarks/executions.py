"""Layer executions of a table's evaluations with kept states, against evaluating row by row: exact, from published records.

    python benchmarks/executions.py

A row's model is evaluated on the test sets of its columns, every batch through each of its layers: that is row by row, and
the papers' way. With `common.forward.prefix_cache` a batch starts at the deepest state that a row before it has left. Here
the store itself is asked, with digests made of what records say was removed, patched, fused, refitted or trained, and a
number in place of a state; the numbers are calls for each batch of a test set, summed over the table's different models.
Published records of the toy model only: which layers go on other models takes their weights.

passes: over calibration tokens, to choose by cosines (ShortGPT, LLM-Streamline, [S], [L]) and for the scales of a patch. The
official code makes one for each choice and one for each patch; here rows share one for each text, cosine and kind of sums.
What searches take is in scripts of their own (search.py, prunecomp.py, laco.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from common.console.command_line import Parser
from common.forward.hidden_state_files import StateFiles
from common.pruning.recipe import Recipe
from common.records.results import Store
from common.toy.tasks import COLUMNS as TASKS
from common.utils.ratios import Ratio, hand_over
from reproductions.spec import registry, subjects


def parting(recipe: Recipe, details: Mapping, kept: list[int]) -> tuple[int, int]:
    """Return (changed, ends) of a recipe's model: the position of its first layer that is not the original's, and how
    many layers are covered by digests, which end before hooks and modules of ours.
    """
    changed = ends = len(kept)
    for report in details.get("refitted", ()):
        changed = min(changed, kept.index(report["layer"]))
    for patch in details.get("patches", ()):
        ends = min(ends, patch["position"])
    for replaced in details.get("replaced", ()):
        ends = min(ends, replaced["position"])
    if details.get("laco"):
        changed = min(changed, min(details["removed"]) - 1)  # what follows a layer is merged into it
    for training in (recipe.training, (recipe.selection or {}).get("tune")):
        if training:
            options = training.get("settings") or training
            changed = min(changed, len(kept) - options["last"]) if options.get("method") == "partial" else 0
    return changed, ends


def chain(
    name: str, kept: list[int], changed: int, ends: int, cuts: Sequence[tuple[int, float]] = ()
) -> dict[int, str]:
    """Return {k: what tells X[k] from others}, as `prefix_store.weights_chain`: the layers before, and whose they are.

    cuts: positions and factors that are fused into all that writes into the stream before them, the embedding first.
    """
    gains = [math.prod(factor for position, factor in cuts if position > layer) for layer in range(-1, len(kept))]
    depths = range(1, min(len(kept), ends + 1))
    return {k: repr((kept[:k], gains[: k + 1])) if k <= changed else f"{name} {k}" for k in depths}


def with_states(models: list[tuple[dict[int, str], int]]) -> int:
    """Layer calls for one batch through models (digests, layers) one after the other."""
    store, calls = StateFiles(), 0
    for digests, layers in models:
        wanted = sorted(store.begin(digests, layers)) if digests else []
        start = store.deepest(digests, "batch")[0] if digests else 0
        calls += layers - start
        for depth in wanted:
            if depth > start:
                store.put(digests[depth], "batch", torch.zeros(1))
    return calls


def models_of(table: registry.Table, store: Store) -> list[tuple[dict[int, str], int]]:
    """Return a table's different models in the order in which they are evaluated, as far as records tell what they are."""
    columns = [column.benchmark for column in table.columns_for(subjects.STANDIN) if column.benchmark]
    read = [name for name in columns if name.partition("@")[0] in {"perplexity", *TASKS}]
    found = {}
    for row in table.rows(subjects.STANDIN) if read else []:
        record = row.recipe and store.get(row.recipe, read[0])
        if record is None or record.status != "ok" or row.recipe.hash in found:
            continue
        layers = subjects.STANDIN.layers
        kept = [layer for layer in range(layers) if layer not in record.details.get("removed", ())]
        changed, ends = parting(row.recipe, record.details, kept)
        cuts = record.details.get("cuts", ())
        found[row.recipe.hash] = chain(row.recipe.hash, kept, changed, ends, cuts), len(kept)
    return list(found.values())


def passes(recipes: Iterable[Recipe]) -> tuple[int, int]:
    """Return (ours, the official code's) for the rows that choose by cosines."""
    ours, theirs = set(), 0
    for recipe in recipes:
        chosen, repair = recipe.selection or {}, recipe.repair or {}
        if chosen.get("method") not in ("bi", "window"):
            continue
        sums = repair.get("estimator") if repair.get("estimator") in ("least-squares", "elementwise") else ""
        cuts = json.dumps(chosen) if sums else ""  # such sums are kept for the chosen cuts alone
        ours.add((json.dumps(recipe.calibration, sort_keys=True), chosen.get("cosine", "token"), sums, cuts))
        theirs += 1 + (repair.get("method") in ("linearpatch", "linearpatch-distilled"))
    return len(ours), theirs


def main() -> None:
    """Print both counts for every target that has records."""
    Parser(description=__doc__).parse_args()
    store, totals = Store(), [0, 0]
    print(f"{'target':28} {'models':>6} {'row by row':>11} {'with states':>12} {'ratio':>6}")
    for table in registry.targets().values():
        models = models_of(table, store)
        if len(models) < 2:
            continue
        alone, shared = sum(layers for _, layers in models), with_states(models)
        totals = [totals[0] + alone, totals[1] + shared]
        print(f"{table.target:28} {len(models):6} {alone:11} {shared:12} {shared / alone:6.2f}")
        what = f"evaluating {table.target}'s {len(models)} models on the toy model: layer executions a batch"
        hand_over(Ratio(what, str(shared), shared / alone, "row by row", dtype=""))
        recipes = {row.recipe.hash: row.recipe for row in table.rows(subjects.STANDIN) if row.recipe}
        ours, theirs = passes(recipes.values())
        if theirs > 1:
            print(f"{'':28} {'':6} {theirs:11} {ours:12} {ours / theirs:6.2f} calibration passes")
            what = f"calibrating {table.target}'s models: passes"
            hand_over(Ratio(what, str(ours), ours / theirs, "the official code's", dtype=""))
    print(f"{'all':28} {'':6} {totals[0]:11} {totals[1]:12} {totals[1] / totals[0]:6.2f}")


if __name__ == "__main__":
    main()
