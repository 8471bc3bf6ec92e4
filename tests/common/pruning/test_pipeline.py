"""One calibration pass for all counts of layers: what it is shared by, where it is kept, and when it is made again."""

from dataclasses import replace

import pytest
import torch

from common import calibration
from common.calibration import collect
from common.calibration.statistics import Statistics
from common.models.decoder import Decoder
from common.pruning import pipeline
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Recipe

ENTRY = {"corpus": "counted", "sampler": "counted", "count": 3, "length": 20, "seed": 0}


@pytest.fixture
def crops():
    return torch.randint(3, 320, (3, 20), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def prepared(make_tiny, crops, monkeypatch):
    """`prepared(force=False)`: a context of the same recipe and model each time, as the rows of a table have them."""
    monkeypatch.setitem(pipeline.SAMPLERS, "counted", lambda *_: crops)
    monkeypatch.setattr(pipeline, "_STATISTICS", [])
    monkeypatch.setattr(pipeline, "_MADE", set())
    model = make_tiny("llama")
    recipe = Recipe(model="tiny", profile="paper", calibration=ENTRY)
    return lambda **options: Context(model, None, recipe, 0, **options)


@pytest.fixture
def passes(monkeypatch):
    """The options of every pass that was made."""
    calls = []

    def counted(*arguments, **options):
        calls.append(options)
        return collect(*arguments, **options)

    monkeypatch.setattr(calibration, "collect", counted)
    return calls


def same(first, second, span, bases=(False, True)):
    for d in range(1, span + 1):
        for a in range(first.layers - d + 1):
            assert all(torch.equal(first.ratio(a, a + d, rotated=r), second.ratio(a, a + d, rotated=r)) for r in bases)
    for a, b in calibration.default_pairs(first.layers, span):
        assert first.cosine("token", a, b) == second.cosine("token", a, b)
    assert torch.equal(first.magnitude(2), second.magnitude(2))


def test_an_entry_of_a_step_replaces_given_tokens(prepared, crops):
    given = crops + 1
    context = prepared(calibration_ids=given)
    assert torch.equal(context.calibrated_on(None).sequences(), given)
    assert torch.equal(context.calibrated_on(Calibration(**ENTRY)).sequences(), crops)


def test_one_pass_serves_every_count_up_to_a_third_of_the_layers(prepared, passes, crops):
    for count in (2, 1):
        statistics = prepared().statistics(count)
        same(statistics, collect(Decoder(prepared().model), crops, span=count), count)
    assert len(passes) == 1
    prepared().statistics(3)
    prepared().statistics(2)
    assert len(passes) == 2


def test_a_pass_is_found_again_on_disk(prepared, passes):
    first = prepared().statistics(2, ("channel",))
    pipeline._STATISTICS.clear()
    second = prepared().statistics(1, ("token",))
    assert len(passes) == 1 and second is not first
    same(first, second, 2)
    assert first.cosine("channel", 1, 3) == second.cosine("channel", 1, 3)
    assert (second.samples, second.tokens, second.kinds) == (3, 60, ("channel",))
    pipeline._STATISTICS.clear()
    pipeline._MADE.clear()  # another process, with --force
    prepared(force=True).statistics(2)
    pipeline._STATISTICS.clear()
    prepared(force=True).statistics(2)
    assert len(passes) == 2


def test_what_was_not_collected_is_collected(prepared, passes, crops):
    prepared().statistics(1, rotate=False)
    same(prepared().statistics(1), collect(Decoder(prepared().model), crops, span=1), 1)
    assert len(passes) == 2
    named = prepared().statistics(2, ("channel",), moments=[(1, 3)], elementwise=[(2, 4)])
    assert prepared().statistics(2, elementwise=[(2, 4)], moments=[(1, 3)]) is named and len(passes) == 3
    both = prepared().statistics(2, moments=[(0, 2)])
    assert prepared().statistics(2, moments=[(1, 3), (0, 2)], elementwise=[(2, 4)]) is both and len(passes) == 4
    assert prepared().statistics(2, matrices=[(0, 2)]).moments[0, 2].gram is not None  # which are not kept
    assert both.moments[0, 2].gram is None and len(passes) == 5
    with pytest.raises(ValueError, match="no channel cosine was collected"):
        collect(Decoder(prepared().model), crops).cosine("channel", 0, 1)


def test_what_belongs_to_named_pairs_is_found_again_on_disk(prepared, passes, crops):
    prepared().statistics(2, moments=[(1, 3)], elementwise=[(2, 4)])
    pipeline._STATISTICS.clear()
    prepared().statistics(2, moments=[(0, 2)])  # as a process that ends after it
    pipeline._STATISTICS.clear()
    statistics = prepared().statistics(2, moments=[(1, 3)], elementwise=[(2, 4)])
    assert len(passes) == 2 and prepared().statistics(2, moments=[(0, 2)]) is statistics
    for pair in ((1, 3), (0, 2)):
        alone = collect(Decoder(prepared().model), crops, span=2, moments=[pair], elementwise=[(2, 4)])
        moments, moments_alone = statistics.moments[pair], alone.moments[pair]
        first, second = ((m.scalar(), m.target, m.tokens) for m in (moments, moments_alone))
        assert first == second
        assert all(torch.equal(moments.channels(rotated), moments_alone.channels(rotated)) for rotated in (False, True))
        assert torch.equal(statistics.ratio(2, 4, "elementwise", True), alone.ratio(2, 4, "elementwise", True))


@pytest.mark.parametrize("skip", [0, 2])
def test_a_file_says_how_many_first_tokens_are_in_none_of_it(tiny_llama, crops, tmp_path, skip):
    """Else statistics without first tokens would be taken for those of all of them."""
    written = collect(Decoder(tiny_llama), crops, span=2, skip=skip)
    (tmp_path / "statistics").write_bytes(written.to_bytes())
    statistics = Statistics.read(tmp_path / "statistics", torch.device("cpu"))
    for skipped in (0, 2):
        assert statistics.holds([], span=2, kinds=("token",), skip=skipped) == (skip == skipped)
    same(statistics, written, 2)


@pytest.mark.parametrize("damage", [b"", b"no statistics", b"\x80\x02h\xf1.", None])
def test_a_damaged_file_costs_a_pass(damage, prepared, passes, caplog):
    prepared().statistics(1)
    (path,) = pipeline.work_folder().rglob("statistics-*.pt")
    path.write_bytes(path.read_bytes()[:-8] if damage is None else damage)
    pipeline._STATISTICS.clear()
    prepared().statistics(1)
    assert len(passes) == 2 and "is unreadable" in caplog.text
    pipeline._STATISTICS.clear()
    prepared().statistics(1)
    assert len(passes) == 2


def test_models_at_hand_share_nothing(make_tiny, crops, passes):
    for name in ("llama", "qwen2"):
        model = make_tiny(name)
        context = pipeline.context_of(model, sequences=crops)
        same(context.statistics(2), collect(Decoder(model), crops, span=2), 2)
    assert len(passes) == 2 and not list(pipeline.work_folder().rglob("*.safetensors"))


def test_a_mix_of_texts_is_read_in_turn_and_each_text_named(tiny_llama, monkeypatch):
    drawn = []

    def rising(_, entry):
        drawn.append((entry.corpus, entry.count, entry.apart))
        first = {"one": 100, "two": 200}[entry.corpus]
        return torch.arange(first, first + entry.count)[:, None].expand(-1, 20)

    monkeypatch.setitem(pipeline.SAMPLERS, "rising", rising)
    recipe = Recipe(model="tiny", profile="paper", calibration=ENTRY | {"corpus": "one+two", "sampler": "rising"})
    sequences = Context(tiny_llama, None, recipe, 0).sequences()
    assert sequences[:, 0].tolist() == [100, 200, 101] and sequences.shape == (3, 20)
    apart = replace(Context(tiny_llama, None, recipe, 0).calibration, count=8, apart=3)
    assert [(part.count, part.apart) for part in apart.parts()] == [(4, 1), (4, 2)]  # the last three: two, one, two
    assert drawn == [("one", 2, None), ("two", 1, None)]
    assert list(recipe.reads()) == [("corpus", "one"), ("corpus", "two")]
