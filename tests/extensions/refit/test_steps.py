"""The refit's options: each against least squares over all tokens at once, or the dense model's forward pass."""

import argparse
import copy
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from least_squares import recorded, ridge_solution, share, stream, weight
from tools import main
from transformers import AutoModelForCausalLM

from common.cli import Job
from common.cli.options import tool_parser
from common.forward import spill_buffer  # noqa: F401 - steps: those that recipes name
from common.models import checkpoint, loading  # noqa: F401 - steps: those that recipes name
from common.models.decoder import Decoder
from common.pruning import steps  # noqa: F401 - steps: those that recipes name
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.selection import runs as runs_of
from common.utils.errors import UserError
from extensions import refit
from extensions.refit import tool
from extensions.refit.cost import Cost
from extensions.refit.least_residual import residual_errors

DOWN = "model.layers.1.mlp.down_proj"


def assert_change(model, dense, path, expected, scaled_atol=1e-4):
    """Assert that a matrix has changed by what least squares give [in, out]."""
    change = (weight(model, path) - weight(dense, path)).T
    assert torch.allclose(change, expected, atol=scaled_atol * expected.abs().max().item())


def left_in(model, dense, ids, place, boundary):
    """The share of the original residual stream that the pruned model's misses."""
    target = stream(dense, ids, boundary)
    return share(stream(model, ids, place) - target, target)


def equal_weights(one, other):
    return all(torch.equal(*weights) for weights in zip(one.parameters(), other.parameters(), strict=True))


def test_held_out_samples_choose_the_ridge_and_all_samples_solve(pair):
    model, dense = pair
    ids = torch.randint(5, 300, (40, 24), generator=torch.Generator().manual_seed(0))
    [report] = refit.refit(model, ids, [2, 3], following=0, held_out=8)
    [(h, _)] = recorded(dense, ids, DOWN)
    target = stream(dense, ids, 4)
    missing = target - stream(dense, ids, 2)
    fitted, held_out = slice(0, 32 * ids.shape[1]), slice(32 * ids.shape[1], None)
    lefts = {float("inf"): share(missing[held_out], target[held_out])}
    for ridge in set(refit.RIDGES) - {float("inf")}:
        solved = ridge_solution(h[fitted], missing[fitted], ridge)
        lefts[ridge] = share(missing[held_out] - h[held_out] @ solved, target[held_out])
    best = min(lefts, key=lefts.get)
    assert report["ridge"] == best and report["held_out"] == pytest.approx(lefts[best], rel=1e-3)
    assert best not in (refit.RIDGES[0], refit.RIDGES[-1])
    assert_change(model, dense, DOWN, ridge_solution(h, missing, best))


def test_where_nothing_helps_held_out_samples_the_matrix_stays(pair, ids, monkeypatch):
    model, dense = pair
    # One sample of 24 tokens, fitted without a ridge
    monkeypatch.setattr(refit.method, "RIDGES", (1e-12, float("inf")))
    [report] = refit.refit(model, ids[:2], [2, 3], following=0, held_out=1)
    assert report["ridge"] == float("inf") and report["left"] == pytest.approx(report["error"])
    assert torch.equal(weight(model, DOWN), weight(dense, DOWN))


def test_a_refit_of_a_refitted_model_is_towards_the_dense_one(pair, ids):
    model, dense = pair
    options = {"following": 1, "ridge": 1e-4, "dense": dense}
    refit.refit(model, ids, [3], alive=range(6), **options)
    once = copy.deepcopy(dense)
    refit.refit(once, ids, [3], following=1, ridge=1e-4)
    assert equal_weights(model, once)
    reports = refit.refit(model, ids, [2], alive=[0, 1, 2, 4, 5], **options)
    assert [(r["layer"], r["matrix"]) for r in reports] == [(1, refit.MLP), (4, refit.ATTENTION), (4, refit.MLP)]
    assert len(model.model.layers) == 4
    for place, boundary, report in ((2, 4, reports[0]), (3, 5, reports[2])):
        assert report["left"] == pytest.approx(left_in(model, dense, ids, place, boundary), rel=1e-2)


def test_a_cut_at_the_start_is_refitted_behind_it(pair, ids):
    model, dense = pair
    reports = refit.refit(model, ids, [0, 1], following=1)
    assert [(r["layer"], r["matrix"]) for r in reports] == [(2, refit.ATTENTION), (2, refit.MLP)]
    assert reports[-1]["left"] == pytest.approx(left_in(model, dense, ids, 1, 3), rel=1e-2)


def test_states_that_do_not_fit_into_memory_go_through_files(pair, ids, monkeypatch, tmp_path):
    model, other = pair
    expected = refit.refit(model, ids, [2, 3])
    monkeypatch.setattr(spill_buffer, "HELD_BYTES", 4 * ids.numel() * 64)  # one stream of the two, and no targets
    assert refit.refit(other, ids, [2, 3]) == expected and equal_weights(model, other)


def test_what_is_held_is_counted_and_files_vanish(tmp_path):
    pool = spill_buffer.Held(tmp_path / "states", limit=900)
    x = torch.arange(100.0).view(4, 25)
    one, two = pool.keep(x.clone()), pool.keep((2 * x).bfloat16())
    three = pool.keep(3 * x)
    assert (pool.used, pool.files) == (600, 1)
    assert torch.equal(three, 3 * x) and torch.equal(two.float(), (2 * x).bfloat16().float())
    assert not list((tmp_path / "states").iterdir())
    del one
    assert pool.used == 200
    assert torch.equal(pool.keep(4 * x), 4 * x) and pool.files == 1


def test_a_recipes_options_reach_the_function(pair, ids):
    model, other = pair
    options = {"following": 1, "ridge": 0.01, "held_out": 2, "matrices": "attention", "share": 0.5}
    step = {"method": "refit"} | options
    context = context_of(model, sequences=ids, selection={"method": "given", "layers": [4, 2]}, repair=step)
    assert context.recipe.step("repair").to_json() == step
    run_recipe(context)
    assert context.details["refitted"] == refit.refit(other, ids, [4, 2], **options)
    assert equal_weights(model, other)
    assert refit.Refit().to_json() == {"method": "refit", "following": 3, "ridge": 1e-3}  # as published


def test_of_the_following_layers_only_the_matrices_that_are_named_change(pair, ids):
    for matrices, changed in (("attention", "self_attn.o_proj"), ("mlp", "mlp.down_proj")):
        model = copy.deepcopy(pair[0])
        reports = refit.refit(model, ids, [2, 3], following=1, matrices=matrices)
        assert [(report["layer"], report["matrix"]) for report in reports] == [(1, "mlp.down_proj"), (4, changed)]
        original_layers = {0: 0, 1: 1, 2: 4, 3: 5}
        for name, value in model.state_dict().items():
            _, _, *rest = name.split(".")
            other = f"model.layers.{original_layers[int(rest[0])]}.{'.'.join(rest[1:])}" if "layers" in name else name
            same = torch.equal(value, pair[1].state_dict()[other])
            assert same != (name in (f"{DOWN}.weight", f"model.layers.2.{changed}.weight")), name


def test_o_proj_before_the_cut_takes_its_share_of_the_change_and_down_proj_the_rest(pair, ids):
    model, dense = pair
    attention, ridge, part = "model.layers.1.self_attn.o_proj", 1e-2, 0.5
    reports = refit.refit(model, ids, [2, 3], following=0, ridge=ridge, share=part, batch_size=4)
    assert [report["matrix"] for report in reports] == ["self_attn.o_proj", "mlp.down_proj"]
    [(heads, _)] = recorded(dense, ids, attention)
    missing = stream(dense, ids, 4) - stream(dense, ids, 2)
    assert_change(model, dense, attention, ridge_solution(heads, part * missing, ridge), scaled_atol=1e-5)
    # down_proj, on what the changed attention feeds it
    between = copy.deepcopy(dense)
    between.get_submodule(attention).weight.data = model.get_submodule(attention).weight.data
    [(features, _)] = recorded(between, ids, DOWN)
    missing = stream(dense, ids, 4) - stream(between, ids, 2)
    assert_change(model, dense, DOWN, ridge_solution(features, missing, ridge))


@pytest.mark.parametrize(
    ("said", "device", "sizes", "expected"),
    [
        ((), "cpu", {}, {"held_out": 2, "choose": "best"}),
        (("--ridge", "0.1"), "cpu", {}, {"held_out": 0}),
        (("--held-out", "1"), "cpu", {}, {"held_out": 1}),
        ((), "cpu", {"intermediate_size": 8192}, {"held_out": 0}),
        ((), "cpu", {"hidden_size": 2048}, {"choose": "best"}),
        ((), "cpu", {"hidden_size": 4096}, {"choose": "cosine"}),
        ((), "cuda", {"hidden_size": 4096}, {"choose": "best"}),
        (("--choose", "least-residual"), "cpu", {"hidden_size": 4096}, {"choose": "least-residual"}),
        (("--cosine", "channel"), "cuda", {}, {"choose": "cosine"}),
    ],
)
def test_what_the_tool_holds_out_and_how_it_selects_depends_on_what_is_said_and_the_width(
    said, device, sizes, expected
):
    fixed = ["--model", "nowhere", "--samples", "16", "--device", device]
    options = tool_parser(tool.METHOD.options).parse_args([*fixed, *said])
    config = argparse.Namespace(**{"model_type": "llama", "intermediate_size": 128, "hidden_size": 64} | sizes)
    job = {"options": options, "config": config, "source": Path("nowhere"), "sequences": None, "named_layers": None}
    tool.check(argparse.Namespace(**job, refuse_patches=lambda remedy: None))
    assert vars(options).items() >= expected.items()


# What the cost reads of the tool's options, where nothing is said.
UNSAID = {"device": "cpu", "held_out": None, "stream": None}


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(("removed", "following"), [([2, 3], 1), ([1], 0), ([1, 3], 1), ([0], 2)])
def test_the_cost_said_before_is_the_work_done(removed, following, room, ids, make_tiny, monkeypatch):
    """Weights that tokens meet. Without room for what matrices read, sub-layers run again, as in a streamed model."""
    model, met, layer = make_tiny("llama"), [], 0
    for module in model.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda m, args, out: met.append(m.weight.numel() * args[0][..., 0].numel()))
            layer += module.weight.numel() / 6
    if not room:
        monkeypatch.setattr(spill_buffer, "HELD_BYTES", 0)
    sizes = {"following": following, "samples": len(ids), "stream": None if room else 0.0}
    chosen = SimpleNamespace(**UNSAID | sizes)
    job = SimpleNamespace(options=chosen, config=model.config, layers=6, named_layers=removed, length=ids.shape[1])
    cost = Cost.of(job)
    refit.refit(model, ids, removed, following=following, batch_size=4)
    assert cost.passes * 6 * layer * ids.numel() == pytest.approx(sum(met))
    assert cost.operations > 0 and cost.bytes > 8 * model.config.intermediate_size**2


def run_tool(folder, *more):
    """The status of a run on a tiny model and text of its own."""
    sentences = [f"{number} layers are removed, one after the other, and measured. " for number in range(400)]
    (folder / "text.txt").write_text("".join(sentences))
    fixed = ["--model", str(folder / "tiny"), "--text", str(folder / "text.txt"), "--out", str(folder / "out")]
    return main(tool.METHOD, [*fixed, "--samples", "40", "--length", "32", "--test-samples", "2", "--force", *more])


def report_of(folder):
    return json.loads((folder / "out" / "pruning.json").read_text())


def test_the_tool_removes_what_a_repair_leaves_least_of_if_told_so(write_checkpoint, tmp_path, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(write_checkpoint(tmp_path / "tiny", "llama"))
    drawn, cosines = [], []
    monkeypatch.setattr(
        tool, "residual_errors", lambda d, ids, *a, **k: drawn.append(ids) or residual_errors(d, ids, *a, **k)
    )
    choose = steps.ContiguousBlock.choose
    monkeypatch.setattr(
        steps.ContiguousBlock, "choose", lambda self, context: cosines.append(self) or choose(self, context)
    )
    assert run_tool(tmp_path, "--remove", "3", "--choose", "least-residual") in (0, 3)
    report = report_of(tmp_path)
    width = model.config.hidden_size
    assert len(drawn) == 1 and 0 <= drawn[0].numel() - tool.FEW * width < 32 and cosines == []
    errors = residual_errors(Decoder(model.double()), drawn[0], [1, 2, 3])
    sets = {layers: runs_of(layers) for layers in itertools.combinations(range(1, 5), 3)}
    best = min(sets, key=lambda layers: sum(errors[run] for run in sets[layers]))
    assert report["facts"]["removed"] == list(best)
    assert report["options"]["choose"] == "least-residual"
    for more in (["--cosine", "channel"], ["--choose", "cosine"]):
        run_tool(tmp_path, "--remove", "2", *more)
    run_tool(tmp_path, "--layers", "1,2")
    assert len(drawn) == 1 and [step.cosine for step in cosines] == ["channel", "token"]
    assert run_tool(tmp_path, "--remove", "2", "--choose", "least-residual", "--cosine", "channel") == 2
    assert run_tool(tmp_path, "--remove", "2", "--choose", "least-residual", "--stream") == 2


def test_weights_that_are_not_in_memory_are_refused_and_the_others_stay(pair, ids):
    model, dense = pair
    model.model.layers[1].to("meta")
    with pytest.raises(UserError, match="offloaded weights cannot be refitted"):
        refit.refit(model, ids, [2, 3], following=1)
    assert len(model.model.layers) == 6
    assert all(equal_weights(model.model.layers[layer], dense.model.layers[layer]) for layer in (0, 2, 3, 4, 5))


def test_with_a_share_o_proj_is_refitted_before_each_interface_alone(pair, ids):
    """Behind an interface the matrices of the choice are refitted, and no others."""
    for matrices, others in (("mlp", [refit.MLP]), ("both", [refit.ATTENTION, refit.MLP])):
        model = copy.deepcopy(pair[0])
        reports = refit.refit(model, ids, [2, 4], following=2, share=0.5, matrices=matrices)
        refitted = {layer: [r["matrix"] for r in reports if r["layer"] == layer] for layer in range(6)}
        before = [refit.ATTENTION, refit.MLP]
        assert refitted == {0: [], 1: before, 2: [], 3: before, 4: [], 5: others}


def test_the_cost_of_more_following_layers_than_there_are_is_that_of_all(make_tiny):
    def cost(following):
        options = SimpleNamespace(**UNSAID | {"following": following, "samples": 4})
        config = make_tiny("llama").config
        return Cost.of(SimpleNamespace(options=options, config=config, layers=6, named_layers=None, count=2, length=16))

    assert cost(30) == cost(3) and cost(3).passes > cost(0).passes > 0 and cost(30).bytes > 0


@pytest.fixture
def calibrated(write_checkpoint, tmp_path, monkeypatch):
    """The tool's model, and the sequences that its run draws to calibrate on."""
    model = AutoModelForCausalLM.from_pretrained(write_checkpoint(tmp_path / "tiny", "llama"))
    drawn, crops = [], Job.crops
    monkeypatch.setattr(Job, "crops", lambda *a: drawn.append(crops(*a)) or drawn[-1])
    return model, drawn


def held_out_perplexity(dense, ids, run):
    """The perplexity on the last 5 of 40 sequences of a model without a run of layers, refitted on the others."""
    model = copy.deepcopy(dense)
    refit.refit(model, ids[:35], list(range(*run)), held_out=4)
    with torch.no_grad():
        logits = model(ids[35:], use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[35:, 1:].flatten()).exp().item()


@pytest.mark.parametrize(("worse", "taken"), [(1.2, (3, 5)), (0.5, (2, 4))])
def test_a_set_that_assumes_grafting_is_taken_unless_it_is_so_much_worse_on_text_that_no_refit_read(
    worse, taken, calibrated, tmp_path, monkeypatch
):
    """Of a model this small the two are close: one margin includes the difference, and the other does not."""
    monkeypatch.setattr(tool, "WORSE", worse)
    (dense, drawn), plain, with_graft = calibrated, (2, 4), (3, 5)
    monkeypatch.setattr(tool, "residual_errors", lambda *a, **k: {plain: 0.2, with_graft: 0.3})
    monkeypatch.setattr(tool, "residual_errors_assuming_graft", lambda *a, **k: {with_graft: 0.1})
    assert run_tool(tmp_path, "--remove", "2", "--no-evaluation", "--choose", "least-residual") == 0
    [ids] = drawn
    facts = report_of(tmp_path)["facts"]
    perplexities = [held_out_perplexity(dense, ids, run) for run in (plain, with_graft)]
    assert [tried["removed"] for tried in facts["tried"]] == [[2, 3], [3, 4]]
    assert [tried["perplexity"] for tried in facts["tried"]] == pytest.approx(perplexities, rel=1e-4)
    best = plain if perplexities[1] > worse * perplexities[0] else with_graft
    assert best == taken and facts["removed"] == list(range(*best))
    reports = refit.refit(dense, ids, list(range(*best)), held_out=5)
    assert [own["left"] for own in facts["refitted"]] == pytest.approx([own["left"] for own in reports], rel=1e-4)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.allclose(value, saved[name], atol=1e-5) for name, value in dense.state_dict().items())


@pytest.mark.parametrize("block", [(1, 3), (2, 4), (3, 5)])
def test_the_most_similar_block_is_taken_where_it_is_better_on_text_that_no_refit_read(
    block, calibrated, tmp_path, monkeypatch
):
    (dense, drawn), least = calibrated, (2, 4)
    monkeypatch.setattr(tool, "residual_errors", lambda *a, **k: {least: 0.2})
    monkeypatch.setattr(tool, "residual_errors_assuming_graft", lambda *a, **k: {})
    monkeypatch.setattr(steps.ContiguousBlock, "choose", lambda self, context: list(range(*block)))
    assert run_tool(tmp_path, "--remove", "2", "--no-evaluation") == 0
    [ids] = drawn
    perplexities = {run: held_out_perplexity(dense, ids, run) for run in {least, block}}
    report = report_of(tmp_path)
    facts = report["facts"]
    assert report["options"]["choose"] == "best"
    assert facts["removed"] == list(range(*min(perplexities, key=perplexities.get)))
    assert ("tried" in facts) == (block != least)
    for tried in facts.get("tried", []):
        run = (tried["removed"][0], tried["removed"][-1] + 1)
        assert tried["perplexity"] == pytest.approx(perplexities[run], rel=1e-4)


@pytest.mark.parametrize(
    ("sets", "taken"),
    [
        # layers of the least residual, with grafting, and of the block, each with its perplexity
        (("a10", "a10", "b9"), "b"),
        (("a10", "a10", "b10"), "a"),
        (("a10", "a10", "a10"), "a"),
        (("a100", "b104", "c100"), "b"),
        (("a100", "b104", "c98"), "c"),  # more than a twentieth above the block
        (("a100", "b104", "a100"), "b"),
        (("a95", "b104", "b104"), "a"),
        (("a100", "b106", "c101"), "a"),
        (("a100", "b104"), "b"),
    ],
)
def test_the_lowest_perplexity_decides_but_grafting_has_a_twentieth_of_slack(sets, taken, monkeypatch):
    layers = {name: [place] for place, name in enumerate("abc", 1)}
    perplexity = {tuple(layers[one[0]]): float(one[1:]) for one in sets}
    monkeypatch.setattr(tool, "_refitted", lambda job, model, removed, sequences: SimpleNamespace(model=tuple(removed)))
    monkeypatch.setattr(tool.distill, "sharing", lambda job, removed: None)
    monkeypatch.setattr(tool, "token_nlls", lambda model, judges: model)
    monkeypatch.setattr(tool, "summarise", lambda model: {"perplexity": perplexity[model]})
    job = SimpleNamespace(options=SimpleNamespace(held_out=2), sequences=list(range(8)), notes=[])
    job.remembered = lambda name, candidate, compute: compute()
    named = dict(zip((tool.PLAIN, tool.ASSUMING_GRAFT, tool.BLOCK), (layers[one[0]] for one in sets), strict=False))
    best, tried = tool._best(job, named)
    assert best == layers[taken]
    assert len(tried) == len(job.notes) * len(set(sets)) == (0 if len(set(sets)) == 1 else len(set(sets)))
    slack = bool(tried) and perplexity[tuple(best)] > min(one["perplexity"] for one in tried)
    assert ("although not the lowest" in "".join(job.notes)) == slack


def test_a_sweep_reads_once_what_a_repair_leaves(write_checkpoint, tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "tiny", "llama")
    read = []
    monkeypatch.setattr(tool, "residual_errors", lambda *a, **k: read.append(a[2]) or residual_errors(*a, **k))
    assert run_tool(tmp_path, "--sweep", "1-3") == 0
    assert read == [range(1, 4)]
