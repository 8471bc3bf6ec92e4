"""One road: command line, a notebook's call and a table's recipe give the same model for the same settings, to the bit."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from tools import main, method_of

import reproductions.spec.steps  # noqa: F401 - registers every step
from common import calibration, hooks
from common.calibration import corpora
from common.models import checkpoint, loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context, context_of, run_recipe
from common.pruning.recipe import Calibration, Recipe
from common.pruning.steps import BlockInfluence, ContiguousBlock
from common.training import instructions
from papers import laco, linearpatch, prunecomp, reassessing
from papers.laco.sentences import draw
from papers.laco.steps import LayerCollapse
from papers.linearpatch import distill
from papers.linearpatch.steps import DistilledPatch, LinearPatchRepair
from papers.prunecomp.steps import PruneAndComp
from papers.reassessing.steps import Data, FineTuning, Metric
from tests.tools import paragraphs

SAMPLES, LENGTH = 4, 32
LINEARPATCH = Calibration("own", "linearpatch-train", LENGTH, SAMPLES, 2)
PRUNECOMP = Calibration("own", "prunecomp-train", LENGTH, SAMPLES, 0)
SENTENCES = Calibration("own", sentences=10, seed=0)
LINES = Calibration("own", "line-crops", LENGTH, SAMPLES, 42)


@pytest.fixture
def source(tmp_path, write_checkpoint, monkeypatch):
    """A tiny checkpoint, and a text that is a file for the tools and the corpus ``own`` for recipes."""
    path = tmp_path / "text.txt"
    path.write_text(paragraphs())
    text = path.read_text()
    pieces = [piece for piece in text[: int(0.9 * len(text))].split("\n\n") if piece.strip()]
    texts, joined_ids = corpora.texts, corpora.joined_ids
    monkeypatch.setattr(corpora, "texts", lambda name: pieces if name == "own" else texts(name))
    own = lambda tokenizer, name: corpora.encode(tokenizer, text) if name == "own" else joined_ids(tokenizer, name)  # noqa: E731
    monkeypatch.setattr(corpora, "joined_ids", own)
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / "work"))
    return SimpleNamespace(path=path, text=text, pieces=pieces, model=write_checkpoint(tmp_path / "tiny"))


@pytest.fixture
def tool(source, tmp_path):
    """Run a paper's command; the saved model's tensors and the report."""

    def run(paper, *options):
        out = tmp_path / "pruned"
        fixed = ["--model", str(source.model), "--out", str(out), "--text", str(source.path), "--no-evaluation"]
        fixed += ["--samples", str(SAMPLES), "--length", str(LENGTH), "--force"]
        assert main(method_of(paper), [*fixed, *options]) == 0
        return tensors(checkpoint.load(out)[0]), json.loads((out / "pruning.json").read_text())

    return run


@pytest.fixture
def table(source):
    """Carry a recipe out as tables do; the model's tensors."""

    def run(**steps):
        model, tokenizer = loading.load(str(source.model))
        context = Context(model, tokenizer, Recipe("tiny", "standin", "own", **steps), 1)
        run_recipe(context)
        return tensors(context.model)

    return run


def tensors(model):
    patches = {f"patch {i}.{name}": t for i, p in enumerate(hooks.patches(model)) for name, t in
               p.module.state_dict().items()}  # fmt: skip
    return model.state_dict() | patches


def same(*models):
    first, *others = models
    for other in others:
        assert first.keys() == other.keys()
        for name, tensor in first.items():
            assert torch.equal(tensor, other[name]), name


def crops(source, tokenizer, entry):
    ids = corpora.encode(tokenizer, source.text)
    return calibration.sample_crops(ids, **entry.drawing())


@pytest.mark.parametrize(
    "sampler, seed, begin, end",
    [("linearpatch-train", 2, 0.0, 0.9), ("linearpatch-validation", 2, 0.9, 1.0), ("prunecomp-train", 0, 0.0, 0.9)],
)
def test_samplers_draw_as_the_official_codes(source, sampler, seed, begin, end):
    model, tokenizer = loading.load(str(source.model))
    ids = corpora.encode(tokenizer, source.text)
    generator, edges = random.Random(seed), (int(len(ids) * begin), int(len(ids) * end) - LENGTH - 1)
    starts = [generator.randint(*edges) for _ in range(SAMPLES)]
    drawn = context_of(model, tokenizer).tokens(Calibration("own", sampler, LENGTH, SAMPLES))
    assert drawn.tolist() == [ids[start : start + LENGTH].tolist() for start in starts]


@pytest.mark.parametrize(
    "options, selection, patch",
    [
        ((), ContiguousBlock(2), LinearPatchRepair()),
        (("--variant", "S"), BlockInfluence(2), LinearPatchRepair()),
        (("--patch", "matrix"), ContiguousBlock(2), LinearPatchRepair("matrix", "least-squares")),
        (("--patch", "scalar", "--cosine", "channel"), ContiguousBlock(2, "channel"), LinearPatchRepair("scalar")),
        (
            ("--patch", "diagonal", "--cosine", "channel", "--estimator", "least-squares"),
            ContiguousBlock(2, "channel"),
            LinearPatchRepair("diagonal", "least-squares"),
        ),
    ],
)
def test_linearpatch(source, tool, table, options, selection, patch):
    by_tool, report = tool("linearpatch", "--remove", "2", *options)
    by_table = table(selection=selection, repair=patch, calibration=LINEARPATCH)
    model, tokenizer = loading.load(str(source.model))
    variant = "S" if isinstance(selection, BlockInfluence) else "L"
    choice = {"variant": variant, "cosine": selection.cosine, "kind": patch.kind, "estimator": patch.estimator}
    linearpatch.prune(model, crops(source, tokenizer, LINEARPATCH), 2, **choice)
    same(by_tool, by_table, tensors(model))


def test_linearpatch_distilled(tool, table, monkeypatch):
    """But for the rounding of the stored teacher, which the tool does without."""
    plain = distill.distill
    monkeypatch.setattr(distill, "distill", lambda *given, **options: plain(*given, **options | {"store": None}))
    by_tool, report = tool("linearpatch", "--remove", "2", "--distill", "6")
    assert report["facts"]["training"]["steps"] == 6
    assert any(note.startswith("distilled on 6 sequences") for note in report["notes"])
    step = DistilledPatch(trainable="matrix", kind="hadamard", samples=6)
    same(by_tool, table(selection=ContiguousBlock(2), repair=step, calibration=LINEARPATCH))


@pytest.mark.parametrize(
    "options, step",
    [
        ((), PruneAndComp("bi", 2)),
        (("--metric", "cl"), PruneAndComp("cl", 2)),
        (("--metric", "ppl"), PruneAndComp("ppl", 2)),
        (("--one-shot", "--no-compensation"), PruneAndComp("bi", 2, iterative=False, compensate=False)),
    ],
)
def test_prunecomp(source, tool, table, options, step):
    by_tool, _ = tool("prunecomp", "--remove", "2", *options)
    model, tokenizer = loading.load(str(source.model))
    choice = {"metric": step.metric, "iterative": step.iterative, "compensate": step.compensate}
    prunecomp.prune_and_compensate(model, crops(source, tokenizer, PRUNECOMP), 2, **choice)
    same(by_tool, table(selection=step, calibration=PRUNECOMP), tensors(model))


@pytest.mark.parametrize(
    "options, merge", [((), "code"), (("--merge", "code"), "code"), (("--merge", "paper"), "paper")]
)
def test_laco(source, tool, table, options, merge):
    by_tool, _ = tool("laco", "--remove", "2", *options)
    C = 3  # the paper's for two layers
    by_table = table(selection=LayerCollapse(C, merge=merge, layers=4), calibration=SENTENCES)
    model, tokenizer = loading.load(str(source.model))
    laco.collapse_to(model, tokenizer, draw(source.pieces, 10, 0), 4, C=C, I=2, merge=merge)
    same(by_tool, by_table, tensors(model))


@pytest.mark.parametrize("merge", ["code", "paper"])
def test_layers_that_laco_would_merge_away_can_be_left_out(source, tool, table, merge):
    """The search is the merge's own, and what stays is the model as it came."""
    by_table = table(selection=LayerCollapse(3, merge=merge, layers=4, left_out=True), calibration=SENTENCES)
    (searched, tokenizer), (model, _) = loading.load(str(source.model)), loading.load(str(source.model))
    collapsed = laco.collapse_to(searched, tokenizer, draw(source.pieces, 10, 0), 4, C=3, I=2, merge=merge)
    remove_layers(model, collapsed.removed)
    same(by_table, tensors(model))
    assert len(collapsed.removed) == 2 and model.config.num_hidden_layers == 4


@pytest.mark.parametrize("metric, entry", [("random", None), ("taylor", LINES), ("bi", LINES)])
def test_reassessing(source, tool, table, metric, entry):
    by_tool, _ = tool("reassessing", "--remove", "2", "--metric", metric, "--finetune", "none")
    model, tokenizer = loading.load(str(source.model))
    ids = entry and reassessing.sample_line_crops(tokenizer, source.pieces, count=SAMPLES, length=LENGTH)
    remove_layers(model, reassessing.select(metric, Decoder(model), 2, ids))
    same(by_tool, table(selection=Metric(metric, 2), calibration=entry), tensors(model))


def test_reassessing_fine_tuned(source, tool, table, monkeypatch):
    examples = [instructions.Example(f"Count to {n}.", "", " ".join(map(str, range(n)))) for n in range(2, 14)]
    monkeypatch.setitem(instructions.SOURCES, "own", lambda count, held_out, seed: (examples[:count], examples[-3:]))
    how = ("--finetune", "partial", "--last", "1", "--epochs", "1", "--batch", "4", "--learning-rate", "1e-3")
    by_tool, report = tool("reassessing", "--remove", "2", "--data", "own", "--rows", "8", *how)
    settings = report["facts"]["training"]["settings"]
    training = FineTuning(settings, Data(source="own", count=8))
    model, tokenizer = loading.load(str(source.model))
    train, valid = instructions.load(tokenizer, "own", count=8)
    remove_layers(model, reassessing.reverse_order(6, 2))
    changed = {name: value for name, value in settings.items() if name not in ("method", "last")}
    by_call, _ = reassessing.partial_finetune(model, tokenizer, train, valid, last=1, **changed)
    same(by_tool, table(selection=Metric("reverse-order", 2), training=training), tensors(by_call))
