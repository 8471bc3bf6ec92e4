"""What the figures are drawn from, against models that are really pruned and patched; and the drawing itself."""

import copy
import math

import pytest
import torch

from common.calibration import collect
from common.context import Context
from common.decoder import Decoder
from common.errors import UserError
from common.evaluation.perplexity import summarise, token_nlls
from common.results import Recipe
from common.surgery import remove_layers
from figures import linearpatch as drawing
from papers import linearpatch
from papers.linearpatch.steps import ObservedWindow
from reproductions import benchmarks, registry
from reproductions.benchmarks import magnitudes


@pytest.fixture
def crops():
    return torch.randint(3, 320, (4, 40), generator=torch.Generator().manual_seed(7))


@pytest.fixture
def text():
    return torch.randint(3, 320, (3, 30), generator=torch.Generator().manual_seed(8))


@pytest.fixture
def observed(tiny_llama, crops, text, monkeypatch, request):
    """A tiny dense model, looked at around its window of two layers."""
    monkeypatch.setattr(Context, "windows", lambda self: crops)
    monkeypatch.setattr(magnitudes, "_text", lambda prepared: text)
    selection = ObservedWindow(2, "token")
    recipe = Recipe("small", "paper", request.node.name, selection=selection, calibration={"length": 40})
    prepared = Context(tiny_llama, None, recipe, 0)
    selection.apply(prepared)
    return prepared


def perplexity(model, text):
    return summarise(token_nlls(model, text))["perplexity"]


def test_the_optimum_of_a_parabola_in_the_logarithm_is_found_exactly():
    factors = (0.8, 1.0, 1.3, 1.5)
    curve = [math.exp(2 + 3 * math.log(f / 1.17) ** 2) for f in factors]
    assert magnitudes.optimum(factors, curve) == pytest.approx(1.17)
    assert magnitudes.optimum(factors, [1.0, 2.0, 3.0, 4.0]) == 0.8


@pytest.mark.parametrize("best", [0.4, 0.9, 1.2, 3.3])
def test_a_best_factor_beyond_the_first_ones_is_searched_for(best):
    asked = []

    def perplexity(factor):
        asked.append(factor)
        return math.exp(math.log(factor / best) ** 2)

    found = magnitudes.searched(perplexity)
    assert list(found) == sorted(asked) and len(asked) == len(set(asked)) and set(magnitudes.FACTORS) <= set(asked)
    assert magnitudes.optimum(tuple(found), list(found.values())) == pytest.approx(best)
    assert (len(asked) > len(magnitudes.FACTORS)) == (best in (0.4, 0.9, 3.3))
    ends = magnitudes.searched(lambda factor: factor)
    assert min(ends) == pytest.approx(0.2, rel=magnitudes.FURTHER - 1) and max(ends) == 1.75


def test_the_sweep_is_the_perplexity_of_models_really_patched(observed, crops, text):
    start, stop = observed.details["window"]
    dense = copy.deepcopy(observed.model)
    values, _, details = magnitudes.alpha(observed, "")
    assert len(observed.model.model.layers) == 6
    cut = copy.deepcopy(dense)
    remove_layers(cut, range(start, stop))
    assert values["perplexity_none"] == pytest.approx(perplexity(cut, text), rel=1e-4)
    statistics = collect(Decoder(dense), crops, span=2)
    for name, kind in (("d", "diagonal"), ("A", "hadamard")):
        patched = copy.deepcopy(dense)
        linearpatch.patch_cuts(patched, statistics, range(start, stop), kind=kind, ends=True)
        assert values[f"perplexity_{name}"] == pytest.approx(perplexity(patched, text), rel=1e-4)
        assert details["curves"][name][details["alphas"].index(1.0)] == values[f"perplexity_{name}"]


def test_magnitudes_are_those_of_the_statistics(observed, crops):
    values, _, details = magnitudes.magnitudes(observed, "")
    start, stop = details_window = observed.details["window"]
    found = collect(Decoder(observed.model), crops, span=2, elementwise=[tuple(details_window)])
    assert details["layers"][start] == pytest.approx(found.magnitude(start).mean().item())
    assert values["sigma_rotated"] == pytest.approx(found.spread(start, stop, True), rel=1e-6)
    scaled = torch.tensor(details["channels"]["plain"]["scaled"])
    expected = found.magnitude(start) * found.ratio(start, stop)
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=1e-7)
    assert len(details["tokens"]["plain"]) == 40


def test_every_cut_is_tried_and_the_matrix_is_that_of_a_patched_model(observed, crops, text):
    values, _, details = magnitudes.cuts(observed, "")
    assert values["cuts"] == 3 and [row["window"] for row in details["rows"]] == [[1, 3], [2, 4], [3, 5]]
    for row in details["rows"]:
        patched = copy.deepcopy(observed.model)
        layers = list(range(*row["window"]))
        linearpatch.prune(patched, crops, 2, layers=layers, kind="matrix", estimator="least-squares")
        assert row["perplexities"]["matrix"] == pytest.approx(perplexity(patched, text), rel=1e-3)
        assert row["unexplained"]["matrix"] < row["unexplained"]["least-squares"] < row["unexplained"]["ratio"]
    off = [abs(math.log(row["ratio"] / row["best_factor"])) for row in details["rows"]]
    assert values["off_ratio"] == pytest.approx(sum(off) / 3)


def test_every_figure_is_drawn_from_such_records(observed):
    records = {}
    for name in ("magnitudes", "alpha", "cuts"):
        values, _, details = benchmarks.measure(observed, name)
        records[name] = {"values": values, "details": observed.details | details}
    entry = {"model": "small", "sparsity": "2/6", "method": "observed", "dense": False, "records": records}
    for table in registry.targets().values():
        module, _, function = (table.draw or "").partition(":")
        if module == "figures.linearpatch":
            wanted = {column.benchmark for column in table.columns("standin")}
            one = entry | {"records": {name: records[name] for name in wanted}}
            picture = getattr(drawing, function)([one, one], "paper")
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in picture.axes)
            drawing.plt.close(picture)


def test_timing_needs_something_inserted(observed, crops):
    with pytest.raises(UserError, match="nothing was inserted"):
        benchmarks.measure(observed, "inserted")
    linearpatch.prune(observed.model, crops, 2, layers=[2, 3])
    values, _, details = benchmarks.measure(observed, "inserted")
    assert values["seconds"] > 0 and values["calls"] >= 5 and details["shape"] == [16, 40, 64]
