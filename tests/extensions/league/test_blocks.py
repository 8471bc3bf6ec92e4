"""What each block of layers costs: against models that really lost it, and the picture of it."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import context_of
from extensions.refit.graft import Observed
from figures import blocks as picture
from reproductions import measurements  # noqa: F401 - steps: those that recipes name
from reproductions.spec import registry, steps, subjects  # noqa: F401 - steps: those that recipes name
from tests.massive_model import FIRST, WRITER, planted

TABLE = registry.get("figure-windows-league")
STARTS = (1, 2, 3)


@pytest.fixture
def ids():
    return torch.randint(3, 320, (16, 18), generator=torch.Generator().manual_seed(6))


@torch.no_grad()
def losses(model, ids) -> torch.Tensor:
    each = [model(input_ids=row[None], labels=row[None], use_cache=False).loss for row in ids]
    return torch.stack(each).double()


def measure(model, ids, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "tiny", SimpleNamespace(sequences=lambda protocol, tokenizer: ids))
    context = context_of(model, sequences=ids, selection={"method": "observed-window", "count": 2, "cosine": "token"})
    return measurements.measure(context, "windows@tiny")


@pytest.fixture
def measured(make_tiny, ids, monkeypatch):
    """The tiny model, the sequences that are looked at (every other one), and what is found."""
    model = make_tiny("llama")
    return model, ids[::2], measure(model, ids, monkeypatch)


def test_costs_are_those_of_models_without_the_block(measured):
    model, looked, (values, _, details, _) = measured
    dense, perplexities = losses(model, looked), {}
    for row, start in zip(details["rows"], STARTS, strict=True):
        pruned = copy.deepcopy(model)
        remove_layers(pruned, [start, start + 1])
        more = losses(pruned, looked) - dense
        perplexities[start] = math.exp((dense + more).mean())
        assert row["start"] == start and row["plain"]["more"] == pytest.approx(more.mean().item(), abs=1e-4)
        assert row["plain"]["se"] == pytest.approx(more.std().item() / math.sqrt(len(more)), rel=1e-2)
    assert values["windows"] == 3 and values["dense"] == pytest.approx(dense.mean().exp().item(), rel=1e-4)
    assert details["chosen"]["cheapest"] == min(perplexities, key=perplexities.get)
    for key in ("cheapest", "least_left", "least_loss"):
        assert values[key] == pytest.approx(perplexities[details["chosen"][key]], rel=1e-4)


@torch.no_grad()
def test_the_first_tokens_state_is_the_dense_models_where_the_block_ends(measured):
    model, looked, (_, _, details, _) = measured
    dense = losses(model, looked)
    states = model(looked, output_hidden_states=True, use_cache=False).hidden_states
    for row, start in zip(details["rows"], STARTS, strict=True):
        pruned, pruned_losses = copy.deepcopy(model), []
        remove_layers(pruned, [start, start + 1])
        for sequence, own in zip(looked, states[start + 2], strict=True):
            hook = pruned.model.layers[start].register_forward_pre_hook(
                lambda module, args, own=own: (torch.cat([own[None, :1], args[0][:, 1:]], 1), *args[1:])
            )
            pruned_losses.append(losses(pruned, sequence[None]))
            hook.remove()
        assert row["kept"]["more"] == pytest.approx((torch.cat(pruned_losses) - dense).mean().item(), abs=1e-4)


@torch.no_grad()
def test_neurons_are_grafted_where_their_layer_is_removed_and_the_model_stays_as_it_was(make_tiny, ids, monkeypatch):
    model = planted(make_tiny("llama"))
    ids[:, 0] = FIRST
    before = copy.deepcopy(model)
    values, _, details, _ = measure(model, ids, monkeypatch)
    weights = zip(model.parameters(), before.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in weights)
    looked, carried = ids[::2], {row["start"]: row["carried"] for row in details["rows"] if "carried" in row}
    assert set(carried) <= {WRITER - 1, WRITER} and WRITER in carried
    for start, row in carried.items():
        pruned = copy.deepcopy(model)
        removed = [start, start + 1]
        graft = Observed(Decoder(pruned), ids).graft(removed)
        graft.into(pruned.model.layers[graft.host])
        remove_layers(pruned, removed)
        more = losses(pruned, looked) - losses(model, looked)
        assert row["more"] == pytest.approx(more.mean().item(), abs=1e-4)
    for key in ("least_left", "least_loss", "cheapest"):
        start = details["chosen"][key]
        same = math.exp(losses(model, looked).mean() + carried[start]["more"]) if start in carried else values[key]
        assert values[f"{key}_carried"] == pytest.approx(same, rel=1e-3)


def entry(chosen, writer=None):
    looked = [
        {"start": start, "plain": {"more": 1.0 + start, "se": 0.1}, "kept": {"more": start, "se": 0.2}}
        for start in STARTS
    ]
    looked[1]["carried"] = {"more": 0.5, "se": 0.1}
    values = {"dense": 20.0} | ({} if writer is None else {"writer": writer})
    name, details = "windows@league-wikitext2", {"rows": looked, "chosen": chosen, "tokens": 4096}
    record = {"benchmark": name, "values": values, "details": details}
    return {"model": "m", "sparsity": "2/6", "records": {name: record}, "dense": False}


def test_the_picture_has_both_curves_the_choices_and_the_writer():
    figure = picture.draw([entry({"cosine": 2, "least_left": 1, "least_loss": 1}, writer=3)], "paper")
    axes = figure.axes[0]
    plain, kept, carried = (bars.lines[0].get_ydata() for bars in axes.containers)
    assert list(plain) == pytest.approx([20 * math.exp(1 + start) for start in STARTS])
    assert list(kept) == pytest.approx([20 * math.exp(start) for start in STARTS])
    (low, high), *_ = [segment[:, 1] for segment in axes.containers[0].lines[2][0].get_segments()]
    assert math.log(high / low) == pytest.approx(
        2 * 2.3646 * 0.1, rel=1e-4
    )  # Student's t with seven degrees of freedom
    assert list(carried) == pytest.approx([20 * math.exp(0.5)])
    assert {text.get_text(): text.xy[0] for text in axes.texts} == {"cosine": 2, "least residual, least loss": 1}
    assert any("layer 3" in patch.get_label() for patch in axes.patches)
    assert [bool(picture.draw([entry({})], "paper").axes[0].patches)] == [False]
    assert "8 sequences of 512 tokens of WIKI-2" in " ".join(figure.get_suptitle().split())
    assert picture.draw([{"model": "m", "sparsity": "2/6", "records": {}, "dense": False}], "paper") is None


def test_what_is_off_the_scale_stands_above_it_side_by_side_and_is_explained():
    far = entry({})
    rows = far["records"]["windows@league-wikitext2"]["details"]["rows"]
    for kind in ("plain", "kept"):
        rows[0][kind] = {"more": math.log(1000), "se": 0.1}
    figure = picture.draw([far], "paper")
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "^"]
    heights = [line.get_ydata()[0] for line in marks]
    assert [list(line.get_xdata()) for line in marks] == [[STARTS[0]]] * 2 and len(set(heights)) == 2
    assert min(heights) >= 1  # of the axis

    def explained(drawn):
        (legend,) = drawn.legends
        return " ".join([legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())])

    words = ("off the scale", "dense", "cosine", "least residual", "least loss")
    assert all(word in explained(figure) for word in words)
    assert "off the scale" not in explained(picture.draw([entry({})], "paper"))
