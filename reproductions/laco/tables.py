"""LaCo's tables, declared."""

import dataclasses
from functools import partial

from reproductions.laco import columns, recipes
from reproductions.laco.claims import CLAIMS
from reproductions.laco.recipes import CODE, DENSE, LACO, PAPERS, collapsed, one_model
from reproductions.spec import printed_rows
from reproductions.spec.registry import Row, Table
from reproductions.spec.shared_recipes import collapse, sentences
from reproductions.spec.subjects import Subject, recipe

SHARES = "ratio % is recomputed from the number of layers left. For the paper's models n/N is the ratio as printed."
MERGES = (
    "LaCo merges by Eq. 1. Code's merge: what the official notebooks compute, the last layer's weights under the first "
    "layer's norms. On other models than the paper's T is the highest threshold that leaves as many layers as shown. The toy "
    "model has C = 3, I = 2 and T = .55 or .89 (code's merge), which both leave 12 layers."
)
CONTROLS = (
    "Its layers left out: the layers that the merge merges away are removed instead. Nothing merged: Algorithm 1 with "
    "removal in place of a merge."
)
SEARCH = (
    "On other models than the paper's T was chosen so that as many layers are left as shown. The rows with the paper's C and "
    "T show what these leave. s is the similarity of one attempt; x: no merge was accepted."
)
AGAIN = (
    "Pruned again: the same C and I, and the highest threshold that leaves the printed 17 layers (another model: about half "
    "of its layers), because the paper prints no settings. As small at once: collapsed to as many layers in one run, not "
    "trained."
)
KEPT = "What is kept includes chance level; docs/chance-level.md has what is left without it."
WRITTEN = (
    "Greedy, side by side. The paper shows one XSum prompt and no dense answer: line breaks alone for LLMPru., 'of the "
    "19900s of the 1900s of the 1900s of the 1900s.' for SliceGPT, two sentences of the prompt, all but a word, for LaCo."
)


def _table(number: str, title: str, columns_of, rows_of_one, shape=None, note: str = MERGES) -> Table:
    printed = recipes.printed(number, shape)

    def rows(subject: Subject, limit: int | None) -> list[Row]:
        return printed(limit) if subject.printed else rows_of_one(subject, limit)

    return printed_rows.declare("laco", number, title, rows, columns_of, CLAIMS.get(number, ()), note)


def _search_rows(subject: Subject, limit: int | None, all_shares: bool = False) -> list[Row]:
    """Return both merges with one model's own settings, and with the paper's C = 4 and T = .65 for LLaMA-2-7B."""
    lefts = sorted(recipes.lefts(subject), reverse=True) if all_shares else [recipes.main_left(subject)]
    model, rows = subject.model, []
    for merge, name in (("paper", ""), ("code", CODE)):
        rows += [(left, LACO + name, collapsed(model, subject, limit, left, merge)) for left in lefts]
        selection = collapse(merge, 4, subject.layers, 0.65)
        fields = {"selection": selection, "calibration": sentences(subject.profile), "fidelity": merge}
        left = {"paper": 16, "code": 8}[merge] if subject.toy else None
        rows.append((left, LACO + PAPERS + name, recipe(model, subject, limit, **fields)))
    return one_model(subject, rows)


def _without_dense(table: Table) -> Table:
    def rows(subject: Subject, limit: int | None) -> list[Row]:
        return [row for row in table.rows(subject, limit) if row.method != DENSE]

    return dataclasses.replace(table, declared=rows)


def _generation_rows(subject: Subject, limit: int | None) -> list[Row]:
    """Return the rows of Table 8: LLaMA-2-7B's answer to one XSum prompt; on the toy model three prompts of its own."""
    if not subject.printed:
        return recipes.main_rows(subject, limit)
    return [dataclasses.replace(row, sparsity="") for row in recipes.printed("2")(limit) if row.model == "llama-2-7b"]


TABLES = [
    _table("1", "main results", columns.with_layers, recipes.main_rows, recipes.shape, f"{MERGES} {CONTROLS} {SHARES}"),
    _table(
        "2",
        "averages of the main results",
        partial(columns.averages, percent=True),
        recipes.main_rows,
        note=f"{MERGES} {CONTROLS} {KEPT}",
    ),
    _table(
        "3",
        "averages after post-training and pruning again",
        columns.averages,
        recipes.training_rows,
        note=f"{MERGES} {AGAIN}",
    ),
    _table(
        "4",
        "averages at different pruning ratios",
        partial(columns.averages, layers=True),
        recipes.ratio_rows,
        recipes.shape,
        f"{MERGES} {SHARES}",
    ),
    _without_dense(
        _table("5", "hyperparameters of the main results", columns.settings("5"), _search_rows, note=SEARCH)
    ),
    _without_dense(
        _table(
            "6",
            "hyperparameters at different pruning ratios",
            columns.settings("6"),
            partial(_search_rows, all_shares=True),
            recipes.shape,
            f"{SEARCH} {SHARES}",
        )
    ),
    _table(
        "7",
        "main results relative to the dense model",
        columns.percentages,
        recipes.main_rows,
        recipes.shape,
        f"{MERGES} {CONTROLS} {KEPT}",
    ),
    printed_rows.declare("laco", "8", "what the models write", _generation_rows, columns.generations, note=WRITTEN),
    _table(
        "9",
        "scores after post-training and pruning again",
        columns.with_layers,
        recipes.training_rows,
        note=f"{MERGES} {AGAIN}",
    ),
    _table(
        "10",
        "scores at different pruning ratios",
        columns.with_layers,
        recipes.ratio_rows,
        recipes.shape,
        f"{MERGES} {SHARES}",
    ),
]
