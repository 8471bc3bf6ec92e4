"""What the figures are drawn from, against models that are really pruned and patched; and the drawing itself."""

import copy
import math

import numpy as np
import pytest
import torch

from common.calibration import collect
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.hooks import scale_stream
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.records.results import Recipe
from common.utils.errors import UserError
from figures import linearpatch as drawing
from papers import linearpatch
from papers.linearpatch.steps import ObservedBlock
from reproductions import measurements
from reproductions.measurements import magnitudes
from reproductions.spec import registry


@pytest.fixture
def crops():
    return torch.randint(3, 320, (4, 40), generator=torch.Generator().manual_seed(7))


@pytest.fixture
def text():
    return torch.randint(3, 320, (3, 30), generator=torch.Generator().manual_seed(8))


@pytest.fixture
def observed(tiny_llama, crops, text, monkeypatch, request):
    """A tiny dense model, looked at around its block of two layers."""
    monkeypatch.setattr(Context, "sequences", lambda self: crops)
    monkeypatch.setattr(magnitudes, "_text", lambda prepared, most=None: text)
    selection = ObservedBlock(2, "token")
    recipe = Recipe("small", "paper", request.node.name, selection=selection, calibration={"length": 40})
    prepared = Context(tiny_llama, None, recipe, 0)
    selection.apply(prepared)
    return prepared


def perplexity(model, text):
    return summarise(token_nlls(model, text))["perplexity"]


def test_the_optimum_of_a_parabola_in_the_logarithm_is_found_exactly():
    curve = {f: math.exp(2 + 3 * math.log(f / 1.17) ** 2) for f in (0.8, 1.0, 1.3, 1.5)}
    assert magnitudes.optimum(curve) == pytest.approx(1.17)
    assert magnitudes.optimum({0.8: 1.0, 1.0: 2.0, 1.3: 3.0}) == 0.8


@pytest.mark.parametrize("best", [0.6, 0.9, 1.2, 3.3, 7.0])
def test_the_best_factor_is_searched_for_beyond_the_nearest_minimum(best):
    factors = []

    def loss(factor):  # two minima, the other one near 1
        factors.append(factor)
        return math.exp(min(math.log(factor / best) ** 2, 0.5 + 9 * math.log(factor / 1.05) ** 2))

    losses = magnitudes.searched(loss)
    assert list(losses) == sorted(factors) and len(factors) == len(set(factors)) == len(magnitudes.FACTORS) + 2
    assert magnitudes.optimum(losses) == pytest.approx(best)
    ends = magnitudes.searched(lambda factor: factor)
    assert magnitudes.optimum(ends) == min(ends) == pytest.approx(1.4**-3)


def test_the_sweep_is_the_perplexity_of_models_really_patched(observed, crops, text):
    start, stop = observed.details["window"]
    dense = copy.deepcopy(observed.model)
    values, _, details = magnitudes.alpha(observed, "")
    assert len(observed.model.model.layers) == 6
    pruned = copy.deepcopy(dense)
    remove_layers(pruned, range(start, stop))
    assert values["perplexity_none"] == pytest.approx(perplexity(pruned, text), rel=1e-4)
    statistics = collect(Decoder(dense), crops, span=2)
    for name, kind in (("d", "diagonal"), ("A", "hadamard")):
        patched = copy.deepcopy(dense)
        linearpatch.patch_interfaces(patched, statistics, range(start, stop), kind=kind)
        assert values[f"perplexity_{name}"] == pytest.approx(perplexity(patched, text), rel=1e-4)
        assert details["curves"][name][details["alphas"].index(1.0)] == values[f"perplexity_{name}"]


def test_magnitudes_are_those_of_the_statistics(observed, crops):
    values, _, details = magnitudes.magnitudes(observed, "")
    start, stop = details_block = observed.details["window"]
    statistics = collect(Decoder(observed.model), crops, span=2, elementwise=[tuple(details_block)])
    assert details["layers"][start] == pytest.approx(statistics.magnitude(start).mean().item())
    assert values["sigma_rotated"] == pytest.approx(statistics.spread(start, stop, True), rel=1e-6)
    scaled = torch.tensor(details["channels"]["plain"]["scaled"])
    expected = statistics.magnitude(start) * statistics.ratio(start, stop)
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=1e-7)
    assert len(details["tokens"]["plain"]) == 40


def test_every_cut_is_tried_and_the_matrix_is_that_of_a_patched_model(observed, crops, text):
    values, stderr, details, off_by = magnitudes.interface_factors(observed, "")
    assert values["cuts"] == 3 and [row["window"] for row in details["rows"]] == [[1, 3], [2, 4], [3, 5]]
    for row in details["rows"]:
        patched = copy.deepcopy(observed.model)
        layers = list(range(*row["window"]))
        linearpatch.prune(patched, crops, 2, layers=layers, kind="matrix", estimator="least-squares")
        assert row["perplexities"]["matrix"] == pytest.approx(perplexity(patched, text), rel=1e-3)
        assert row["unexplained"]["matrix"] < row["unexplained"]["least-squares"] < row["unexplained"]["ratio"]
    for name in ("ratio", "alike_at_end"):
        off = [abs(math.log(row[name] / row["best_factor"])) for row in details["rows"]]
        assert values[f"off_{name}"] == pytest.approx(sum(off) / 3) and off_by[f"off_{name}"] == pytest.approx(off)
        assert stderr[f"off_{name}"] == pytest.approx(np.std(off, ddof=1) / 3**0.5)


def test_similarity_at_the_end_is_that_of_the_states_of_pruned_models(observed, crops, monkeypatch):
    monkeypatch.setattr(magnitudes, "END_TOKENS", 2 * crops.shape[1])
    _, _, details, _ = magnitudes.interface_factors(observed, "")
    dense = observed.model.model(crops[:2]).last_hidden_state
    for row in details["rows"]:
        start, stop = row["window"]
        for factor, unlike in row["unlike"][::4]:
            pruned = copy.deepcopy(observed.model)
            remove_layers(pruned, range(start, stop))
            with scale_stream(pruned, start, factor), torch.no_grad():
                states = pruned.model(crops[:2]).last_hidden_state
            expected = torch.nn.functional.cosine_similarity(states, dense, dim=-1).mean().item()
            assert 1 - unlike == pytest.approx(expected, abs=1e-5)
        _, nearest = min(row["unlike"], key=lambda pair: abs(math.log(pair[0] / row["alike_at_end"])))
        assert nearest == pytest.approx(min(unlike for _, unlike in row["unlike"]), abs=1e-3)


def test_every_figure_is_drawn_from_such_records(observed):
    records = {}
    for name in ("magnitudes", "alpha", "cut-factors"):
        values, _, details, *_ = measurements.measure(observed, name)
        records[name] = {"values": values, "details": observed.details | details}
    entry = {"model": "small", "sparsity": "2/6", "method": "observed", "dense": False, "records": records}
    for table in registry.targets().values():
        module, _, function = (table.draw or "").partition(":")
        if module == "figures.linearpatch":
            benchmarks = {column.benchmark for column in table.columns("standin")}
            if not benchmarks <= records.keys():  # of Figure 5, which draws trainings
                continue
            with_records = entry | {"records": {name: records[name] for name in benchmarks}}
            picture = getattr(drawing, function)([with_records, with_records], "paper")
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in picture.axes)
            drawing.plt.close(picture)


def test_timing_needs_something_inserted(observed, crops):
    with pytest.raises(UserError, match="nothing was inserted"):
        measurements.measure(observed, "inserted")
    linearpatch.prune(observed.model, crops, 2, layers=[2, 3])
    values, _, details = measurements.measure(observed, "inserted")
    assert values["seconds"] > 0 and values["calls"] >= 5 and details["shape"] == [16, 40, 64]
