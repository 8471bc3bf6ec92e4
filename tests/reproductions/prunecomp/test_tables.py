"""Prune&Comp's tables: every printed row has a recipe that says what the row says, and lists compare place by place."""

from dataclasses import replace

import pytest
import torch
from stored_records import put

from common.calibration.least_squares import Moments
from common.hadamard import hadamard_matrix
from common.models import loading
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.records.results import Store
from reproductions import measurements
from reproductions.engine import execute
from reproductions.measurements import prunecomp as benchmarks
from reproductions.prunecomp import METRICS, TABLES, recipe, recipes
from reproductions.render import show
from reproductions.spec import printed_rows, registry
from reproductions.spec.subjects import PAPER, TOY

NUMBERS = [table.number for table in TABLES if table.number.lstrip("A").isdigit()]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_printed_row_has_a_recipe_of_its_own_method_and_count(number):
    rows = registry.get(f"table{number}-prunecomp").rows(PAPER, None)
    by_name = {(row.label, row.sparsity, row.method): row for row in rows}
    for printed in printed_rows.rows("prunecomp", number):
        row = by_name[printed.label, printed.sparsity, printed.method]
        if printed.dense:
            assert row.recipe.selection is None
            continue
        metric, _, variant = printed.method.partition(" ")
        chosen = row.recipe.selection
        assert chosen["metric"] == METRICS[metric]
        assert chosen["count"] == int(printed.sparsity.split("/")[0])
        assert chosen["compensate"] == ("Comp" in variant)
        iterative = variant.startswith("+Prune") or "+Iter" in variant
        assert chosen["iterative"] == iterative or metric == "CosSim(CL)"


def test_code_and_paper_differ_in_calibration_and_share_the_rest():
    for metric in METRICS:
        paper = recipe("standin", TOY, None, recipes.RepairSpec(metric, "+Prune&Comp"), 5)
        code = recipe("standin", TOY, None, recipes.RepairSpec(metric, "+Prune&Comp"), 5, "code")
        assert (paper.fidelity, code.fidelity) == ("paper", "code")
        assert "calibration" not in paper.selection
        # 256 crops for BI's factors, 128 for all others
        assert code.calibration["count"] == paper.calibration["count"] * (2 if metric == "CosSim(BI)" else 1)
        own = code.selection.get("calibration", {}).get("sampler")
        assert own == {"CosSim(BI)": "prunecomp-train", "PPL": "lines", "Taylor+": "prunecomp-train"}.get(metric)


def test_printed_lists_are_read_in_order():
    assert benchmarks.printed_list("A3", "LLaMA-3-8B", "5/32", "Taylor+ +Prune&Comp") == [29, 28, 4, 25, 23]
    assert len(benchmarks.printed_list("A3", "LLaMA-3-8B", "7/32", "CosSim(BI)")) == 9
    assert benchmarks.printed_list("A3", "LLaMA-3-8B", "3/32", "PPL") == []


def test_a_removed_list_is_held_against_the_printed_one_place_by_place(tmp_path):
    table = registry.get("tableA3-prunecomp")
    rows = {(row.label, row.method, row.sparsity): row for row in table.rows(PAPER, None)}
    recipe = rows["LLaMA-3-8B", "PPL", "5/32"].recipe
    removed = [10, 11, 9, 8, 12]  # printed: 10, 11, 8, 9, 12
    store = Store(tmp_path, published=None)
    context = Context(None, None, recipe, 0, details={"removed": removed, "layers": 32})
    put(store, recipe, "removed", {"count": 5}, details={"removed": removed})
    put(store, recipe, "removed-order@A3", measurements.measure(context, "removed-order@A3")[0])
    shown = show.build(table, store, PAPER, models=["llama-3-8b"])
    line = next(r for r in shown["rows"] if (r["method"], r["sparsity"]) == ("PPL", "5/32"))
    assert line["cells"]["removed layers"]["text"] == "10 11 9 8 12"
    assert line["cells"]["places that agree (extension)"]["reproduced"] == 3
    statuses = [line["cells"][f"removed {i}"]["status"] for i in range(1, 6)]
    assert statuses == ["match", "match", "differs", "differs", "match"]
    assert [line["cells"][f"removed {i}"]["reproduced"] for i in range(1, 6)] == removed


@pytest.mark.slow
def test_a_recipe_is_carried_out_and_a_shorter_one_starts_from_a_longer(tmp_path):
    spec = recipes.RepairSpec("Mag+", "+Prune&Comp", samples=2)
    recipes_ = [recipe("standin", TOY, None, spec, count) for count in (3, 2)]
    three, two = (execute.prepare(recipe_) for recipe_ in recipes_)
    assert two.details["removed"] == three.details["removed"][:2]
    assert two.details["layer_executions"] == 0  # nothing is searched twice
    assert len(three.model.model.layers) == 13
    values, _, _ = execute.benchmark(three, "removed-order")
    assert list(values.values()) == three.details["removed"]


def tiny_recipe(name: str, samples: int = 2, length: int = 32):
    """A row of the grid on the toy model, with little text."""
    row = next(row for row in registry.get("grid").rows(TOY, None) if row.method == name)
    return replace(row.recipe, calibration=row.recipe.calibration | {"count": samples, "length": length})


@pytest.mark.slow
@pytest.mark.parametrize("repair", ["d", "A", "matrix-least-squares"])
def test_an_iterated_patch_is_fitted_to_the_model_as_it_is_by_then(repair):
    """Naively: models that lose one layer after another, with the patches as hooks; a cut's patches compose."""
    tiny = tiny_recipe(f"bi/iterative/{repair}")
    prepared = execute.prepare(tiny)
    model, _ = loading.load("standin")
    sequences = prepared.sequences()
    names, removed = list(range(16)), []
    kind, estimator = tiny.selection["patch"]["kind"], tiny.selection["patch"]["estimator"]
    for _ in range(tiny.selection["count"]):
        received, returned = [], []
        for layer in model.model.layers:
            layer.register_forward_hook(
                lambda _, a, out, x=received, y=returned: (x.append(a[0]), y.append(out))[:0] or None
            )
        with torch.no_grad():
            model(sequences, use_cache=False)
        for layer in model.model.layers:
            layer._forward_hooks.clear()
        cosines = [torch.cosine_similarity(x, y, dim=-1).mean().item() for x, y in zip(received, returned)]
        place = max(range(len(names)), key=cosines.__getitem__)
        x, y = received[place].float(), returned[place].float()
        if repair == "matrix-least-squares":
            moments = Moments(matrices=True)
            moments.add(x, y)
            matrix = moments.matrix().float()
        else:
            rotation = hadamard_matrix(192).float() if repair == "A" else torch.eye(192)
            d = ((y @ rotation).abs().mean(1) / (x @ rotation).abs().mean(1)).mean(0)
            matrix = rotation * d @ rotation.T
        hooks = list(model.model.layers[place]._forward_pre_hooks.values())
        remove_layers(model, [place])
        removed.append(names.pop(place))
        hooks.append(lambda _, args, matrix=matrix: (args[0] @ matrix, *args[1:]))
        for hook in reversed(hooks):
            model.model.layers[place].register_forward_pre_hook(hook, prepend=True)
    assert kind in ("diagonal", "hadamard", "matrix") and estimator
    assert prepared.details["removed"] == removed
    with torch.no_grad():
        ours, naive = (m(sequences, use_cache=False).logits for m in (prepared.model, model))
    torch.testing.assert_close(ours, naive, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_a_metrics_choice_at_once_is_the_one_shot_rows():
    chosen = execute.prepare(tiny_recipe("taylor+/one-shot/d"))
    plain = execute.prepare(tiny_recipe("taylor+/one-shot/none"))
    assert chosen.details["removed"] == plain.details["removed"]
    assert chosen.details["patches"]
