"""Neurons that write a massive activation, planted in a tiny model, are found and grafted."""

import copy
import json

import pytest
import torch
from tools import main

from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import context_of
from common.utils.errors import UserError
from extensions import refit
from extensions.refit import tool
from extensions.refit.graft import Observed
from papers.linearpatch import steps  # noqa: F401 - registers its repair
from tests.massive_model import FIRST, HOST, PLANTED, WRITER, planted


@pytest.fixture
def ids():
    drawn = torch.randint(8, 300, (6, 24), generator=torch.Generator().manual_seed(0))
    drawn[:, 0] = FIRST
    return drawn


def repaired(model, removed, ids, tokenizer=None, method="graft", **options):
    """The context of a recipe that was carried out on the model."""
    selection = {"method": "given", "layers": removed}
    context = context_of(model, tokenizer, ids, selection=selection, repair={"method": method} | options)
    context.details["removed"] = removed
    context.recipe.step("repair").apply(context)
    return context


def norms(model, ids) -> list[float]:
    """Of the first tokens' states at every layer's input and behind the last layer but its norm, by Hugging Face."""
    with torch.no_grad():
        states = model(ids, output_hidden_states=True, use_cache=False).hidden_states
    return [state[:, 0].norm(dim=-1).mean().item() for state in states[:-1]]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_pruned_model_has_its_massive_activation_again(kind, make_tiny, ids, reloaded, tiny_tokenizer):
    model = planted(make_tiny(kind))
    dense, pruned = norms(model, ids), copy.deepcopy(model)
    remove_layers(pruned, [WRITER])
    context = repaired(model, [WRITER], ids, tiny_tokenizer)
    assert dense[WRITER + 1] > 10 * dense[WRITER] and norms(pruned, ids)[WRITER] < 2 * dense[WRITER]
    assert norms(model, ids)[WRITER] > 0.2 * dense[WRITER + 1]
    report = context.details["graft"]
    assert (report["writer"], report["host"], report["neurons"]) == (WRITER, HOST, sorted(PLANTED))
    prompt = ids[:1, :6]
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False, use_cache=False)
    assert torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False), plain)
    reloaded(model, ids)


@pytest.mark.parametrize("kind", ["llama", "gemma"])  # Gemma's gains are 1 + weight
@torch.no_grad()
def test_copies_give_in_the_host_what_the_neurons_give_of_the_same_state(kind, make_tiny, ids):
    """The quotient of gains exchanges the norms: fed one state, host and writer write the same by these neurons."""
    model = planted(make_tiny(kind))
    before = copy.deepcopy(model)
    graft = Observed(Decoder(model), ids).graft([WRITER])
    graft.into(model.model.layers[HOST])
    state = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(3))

    def features(layer):
        seen = []
        handle = layer.mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        layer.mlp(layer.post_attention_layernorm(state))
        handle.remove()
        return seen[0]

    own, copied = features(before.model.layers[WRITER]), features(model.model.layers[HOST])
    assert torch.allclose(copied[:, graft.places], own[:, graft.neurons], rtol=1e-4, atol=1e-6)
    down = [at.model.layers[layer].mlp.down_proj.weight for at, layer in ((model, HOST), (before, WRITER))]
    assert torch.equal(down[0][:, graft.places], down[1][:, graft.neurons])
    # all else is as it was
    for name, value in before.state_dict().items():
        changed = (model.state_dict()[name] != value).nonzero()
        if not name.startswith(f"model.layers.{HOST}.mlp"):
            assert not len(changed), name
        else:
            assert set(changed[:, int(name.endswith("down_proj.weight"))].tolist()) <= set(graft.places), name


@torch.no_grad()
def test_places_are_those_that_the_host_uses_least(make_tiny, ids):
    model, seen = planted(make_tiny("llama")), []
    mlp = model.model.layers[HOST].mlp
    handle = mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(ids, use_cache=False)
    handle.remove()

    def written(neuron):
        """The root mean square of what a neuron writes."""
        return (seen[0][..., neuron, None] * mlp.down_proj.weight[:, neuron]).square().sum(-1).mean().sqrt().item()

    least = sorted(range(model.config.intermediate_size), key=written)[: len(PLANTED)]
    assert Observed(Decoder(model), ids).graft([WRITER, WRITER + 1]).places == least


@pytest.mark.parametrize(
    ("neurons", "removed"), [((), [WRITER]), (PLANTED, [WRITER - 1]), (PLANTED, list(range(WRITER + 1)))]
)
def test_nothing_is_grafted_without_a_writer_that_is_removed_and_a_layer_before_it(neurons, removed, make_tiny, ids):
    assert Observed(Decoder(planted(make_tiny("llama"), neurons)), ids).graft(removed) is None


@pytest.mark.parametrize("before", [True, False])
def test_a_refit_with_a_graft_is_the_refit_of_a_model_that_has_it_towards_the_dense_one(before, make_tiny, ids):
    model = planted(make_tiny("llama"))
    dense, other = copy.deepcopy(model), copy.deepcopy(model)
    removed, options = [WRITER, WRITER + 1], {"following": 1, "ridge": 1e-2, "batch_size": 4, "before": before}
    graft = Observed(Decoder(model), ids).graft(removed)
    graft.into(other.model.layers[HOST])
    everywhere = range(model.config.num_hidden_layers)
    expected = refit.refit(other, ids, removed, dense=dense, alive=everywhere, **options)
    plain = refit.refit(copy.deepcopy(model), ids, removed, **options)
    reports = refit.refit(model, ids, removed, graft=graft, **options)
    for report, expected_report in zip(reports, expected, strict=True):
        assert (report["layer"], report["matrix"]) == (expected_report["layer"], expected_report["matrix"])
        for name in ("error", "left"):
            assert report[name] == pytest.approx(expected_report[name], rel=1e-5)
    assert reports[0]["error"] < 0.9 * plain[0]["error"]
    for name, value in other.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=1e-4, atol=1e-5), name


def test_a_graft_comes_where_nothing_is_refitted(make_tiny, ids):
    model = planted(make_tiny("llama"))
    other, graft = copy.deepcopy(model), Observed(Decoder(model), ids).graft([WRITER])
    graft.into(other.model.layers[HOST])
    remove_layers(other, [WRITER])
    assert refit.refit(model, ids, [WRITER], following=0, before=False, graft=graft) == []
    assert all(torch.equal(model.state_dict()[name], value) for name, value in other.state_dict().items())


def test_a_recipe_refits_with_a_graft(make_tiny, ids):
    model = planted(make_tiny("llama"))
    other, removed, options = copy.deepcopy(model), [WRITER], {"following": 1, "ridge": 1e-2}
    context = repaired(model, removed, ids, method="refit", graft=True, **options)
    graft = Observed(Decoder(other), ids).graft(removed)
    assert context.details["graft"] == graft.report()
    assert context.details["refitted"] == refit.refit(other, ids, removed, graft=graft, **options)


def test_another_repair_follows_by_what_the_model_with_the_neurons_shows(make_tiny, ids):
    """As if it had come with them: A by the magnitudes of that model, not by those of the dense one."""
    patch = {"method": "linearpatch", "kind": "hadamard", "estimator": "ratio-of-means"}
    model = planted(make_tiny("llama"))
    other, removed = copy.deepcopy(model), [WRITER, WRITER + 1]
    Observed(Decoder(other), ids).graft(removed).into(other.model.layers[HOST])
    plain = repaired(other, removed, ids, **patch)
    context = repaired(model, removed, ids, then=patch)
    assert context.details["graft"]["host"] == HOST and "graft" not in plain.details
    with torch.no_grad():
        assert torch.equal(model(ids, use_cache=False).logits, other(ids, use_cache=False).logits)
    assert context.recipe.repair == {"method": "graft", "then": plain.recipe.repair}


@pytest.mark.parametrize("kind", ["gemma2", "mixtral"])
def test_architectures_whose_mlp_does_not_write_by_itself_are_refused(kind, make_tiny, ids):
    with pytest.raises(UserError, match=kind):
        repaired(make_tiny(kind), [2], ids)


def deaf(model):
    """The planted model, whose layer before the one that writes cannot read what the neurons know first tokens by."""
    model = planted(model)
    model.model.layers[HOST].post_attention_layernorm.weight.data[0] = 0.0
    return model


def beginning(model, tokenizer, text):
    """The model with the token that is known as one that begins many windows of a text, which is written."""
    [begin] = tokenizer("q", add_special_tokens=False).input_ids
    with torch.no_grad():
        model.model.embed_tokens.weight[[begin, FIRST], 0] = model.model.embed_tokens.weight[[FIRST, begin], 0]
    text.write_text("q0z" * 1000)
    return model


@pytest.fixture
def run_tool(write_checkpoint, tiny_tokenizer, tmp_path):
    """`run_tool(model, *options)` -> the report of the tool on a text in which every third token is the one that is known."""

    def run(model, *options):
        source = write_checkpoint(tmp_path / "model", model=beginning(model, tiny_tokenizer, tmp_path / "text.txt"))
        fixed = ["--model", source, "--text", tmp_path / "text.txt", "--out", tmp_path / "out", "--force"]
        sizes = ["--samples", "8", "--length", "16", "--test-samples", "8"]
        assert main(tool.METHOD, [*map(str, fixed), *sizes, *options]) in (0, 3)
        return json.loads((tmp_path / "out" / "pruning.json").read_text())

    return run


def test_what_cannot_be_grafted_where_it_would_not_fire_counts_for_no_choice(make_tiny, ids):
    able, unable = (Observed(Decoder(kind(make_tiny("llama"))), ids) for kind in (planted, deaf))
    assert (able.norms.writer, able.graftable_writer) == (unable.norms.writer, WRITER) == (WRITER, WRITER)
    assert unable.graftable_writer is None and unable.graft([WRITER]) is None
    assert Observed(Decoder(deaf(make_tiny("llama"))), ids).graft([WRITER]) is None
    removed = []
    for option in ({}, {"carried": True}):
        selection = {"method": "least-left", "count": 2, "shape": "set"} | option
        context = context_of(deaf(make_tiny("llama")), None, ids, selection=selection)
        removed.append(context.selection.choose(context))
    assert removed[0] == removed[1]


@pytest.mark.parametrize(
    ("more", "carried"),
    [
        (["--layers", "3"], True),
        (["--layers", "3", "--no-evaluation"], True),
        (["--layers", "3", "--stream"], True),
        (["--layers", "3", "--no-graft"], False),
        (["--layers", "4"], False),
    ],
)
def test_the_tool_grafts_unless_told_otherwise(more, carried, run_tool, make_tiny, tmp_path):
    report = run_tool(planted(make_tiny("llama")), *more)
    notes = [note for note in report["notes"] if "were grafted" in note]
    assert bool(notes) == bool(report["facts"].get("graft")) == carried
    for note in notes:
        assert note.startswith(f"2 neurons of layer {WRITER}") and note in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("layer", [WRITER, WRITER + 1])
def test_the_tool_says_what_cannot_be_grafted(layer, run_tool, make_tiny):
    notes = run_tool(deaf(make_tiny("llama")), "--layers", str(layer))["notes"]
    assert any(note.startswith("no layer before the pruning interface") for note in notes) == (layer == WRITER)
