"""Perplexity against naive loops and closed forms, and the named protocols."""

import itertools
import math
import random
from dataclasses import replace

import pytest
import torch
import transformers
from hub_mirror import write_rows

import papers
from common.calibration import corpora
from common.evaluation.windowed_perplexity import (
    PROTOCOLS,
    Protocol,
    c4_crops,
    every_nth,
    perplexity,
    spread,
    summarise,
)
from common.utils.errors import UserError

papers.load_steps()  # and the papers' protocols


def naive(model, tokens, window):
    means = []
    for start in range(0, len(tokens) - window + 1, window):
        ids = tokens[start : start + window]
        total = 0.0
        for end in range(1, window):  # every prediction from its own prefix
            logits = model(ids[None, :end]).logits[0, -1]
            total -= float(logits.double().log_softmax(-1)[ids[end]])
        means.append(total / (window - 1))
    return math.exp(sum(means) / len(means)), means


@pytest.fixture
def tokens():
    return torch.randint(3, 320, (45,), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_perplexity_is_that_of_a_naive_loop(tiny, tokens):
    expected, means = naive(tiny, tokens, 12)
    assert len(means) == 3  # the tail of nine is dropped
    assert perplexity(tiny, tokens, 12) == pytest.approx(expected, rel=1e-4)
    assert perplexity(tiny, tokens[None], 12) == pytest.approx(expected, rel=1e-4)


def test_standard_error_is_the_delta_method():
    nlls = torch.tensor([[1.0, 3.0], [2.0, 4.0], [0.0, 2.0]])  # window means 2, 3, 1: deviation 1
    summary = summarise(nlls)
    assert summary["perplexity"] == pytest.approx(math.exp(2))
    assert summary["stderr"] == pytest.approx(math.exp(2) / math.sqrt(3))
    assert (summary["windows"], summary["predictions"]) == (3, 6)


def test_one_sequence_has_no_standard_error_and_overflow_is_infinite():
    assert summarise(torch.ones(1, 4))["stderr"] is None
    assert summarise(torch.full((2, 4), 1e4))["perplexity"] == math.inf


@pytest.mark.parametrize(
    ("shape", "window", "message"),
    [
        ((20,), 1, "predicts nothing"),
        ((20,), 21, "20 tokens do not fill one sequence of 21"),
        ((2, 9), 4, "one sequence"),
    ],
)
def test_unusable_input_is_refused(tiny_llama, shape, window, message):
    with pytest.raises(UserError, match=message) as caught:
        perplexity(tiny_llama, torch.zeros(shape, dtype=torch.long), window)
    assert isinstance(caught.value, ValueError)


def test_half_precision_logits_are_summed_in_float32(tiny_llama, tokens):
    expected = perplexity(tiny_llama, tokens, 12)
    assert perplexity(tiny_llama.bfloat16(), tokens, 12) == pytest.approx(expected, rel=0.1)


@pytest.fixture
def short(monkeypatch):
    """A protocol over a small corpus of 40 documents."""
    rng = random.Random(0)
    corpus = corpora.Corpus("short", "nobody/short")
    documents = tuple(" ".join(rng.choice(["layer", "stream", "model"]) for _ in range(i)) for i in range(40))
    monkeypatch.setitem(corpora.CORPORA, "short", corpus)
    monkeypatch.setattr(corpora, "_texts", lambda _: documents)
    return Protocol("short", "short", 16)


def test_a_protocol_measures_and_says_what_it_measured(short, tiny_llama, tiny_tokenizer):
    measured = short.measured(tiny_llama, tiny_tokenizer)
    ids = tiny_tokenizer("\n\n".join(corpora.texts("short")))["input_ids"]
    assert measured["perplexity"] == pytest.approx(perplexity(tiny_llama, torch.tensor(ids), 16))
    assert measured["tokens"] == len(ids) // 16 * 16
    assert measured["corpus_sha256"] == corpora.digest("short")
    assert (measured["protocol"], measured["version"], measured["dtype"]) == ("short", 1, "float32")
    assert short.measured(tiny_llama, tiny_tokenizer, limit=2)["windows"] == 2
    with pytest.raises(UserError, match="measures nothing"):
        short.measured(tiny_llama, tiny_tokenizer, limit=0)


def test_c4_crops_follow_the_published_loop(short, tiny_tokenizer):
    documents = corpora.texts("short")
    random.seed(0)
    expected = []
    for _ in range(12):
        while True:
            ids = tiny_tokenizer(documents[random.randint(0, len(documents) - 1)])["input_ids"]
            if len(ids) > 16:
                break
        start = random.randint(0, len(ids) - 16 - 1)
        expected.append(ids[start : start + 16])
    assert c4_crops(short, tiny_tokenizer, count=12).tolist() == expected


@pytest.mark.parametrize("step", [4, 8])
def test_every_nth_sequence_begins_with_the_first(short, tiny_tokenizer, step):
    ids = tiny_tokenizer("\n\n".join(corpora.texts("short")))["input_ids"]
    part = replace(short, sequences=every_nth(step))
    expected = [ids[start : start + 16] for start in range(0, len(ids) - 15, 16 * step)]
    assert len(expected) > 2 and part.sequences(part, tiny_tokenizer).tolist() == expected


@pytest.mark.parametrize("count", [1, 3, 7, 24, 40, 50])
def test_sequences_of_a_part_are_spread_over_the_whole_text(count):
    """As evenly as whole numbers can be: from one to the next, and from the last to the end, it is as far, or one more."""
    places = spread(count, lambda *_: torch.arange(40))(None, None).tolist()
    gaps = [after - place for place, after in itertools.pairwise([*places, 40])]
    assert places[0] == 0 and len(places) == min(count, 40) and min(gaps) > 0 and max(gaps) - min(gaps) <= 1


def test_a_document_is_cropped_where_it_is_one_token_longer_than_a_crop(short, tiny_tokenizer, monkeypatch):
    """Its only crop begins with the first token: the published loop never takes the last one."""
    documents = ("a" * 16, "b" * 17, "c" * 16)  # a letter is a token
    monkeypatch.setattr(corpora, "_texts", lambda _: documents)
    assert c4_crops(short, tiny_tokenizer, count=5).tolist() == [tiny_tokenizer("b" * 16)["input_ids"]] * 5


def test_c4_crops_refuse_a_corpus_of_short_documents(short, tiny_tokenizer):
    with pytest.raises(UserError, match="none of its 40 documents exceeds 2048 tokens"):
        c4_crops(Protocol("p", "short", 2048), tiny_tokenizer)


def test_the_papers_protocols_are_the_documented_ones():
    assert {p.name: (p.corpus, p.window) for p in PROTOCOLS.values() if p.name.startswith("linearpatch")} == {
        "linearpatch-wikitext2": ("wikitext2-test", 2048),
        "linearpatch-c4": ("c4-validation", 2048),
        "linearpatch-ptb": ("ptb-validation", 2048),
    }
    assert corpora.get("c4-validation").data_file == "en/c4-validation.00000-of-00008.json.gz"
    assert all(protocol.corpus in corpora.CORPORA for protocol in PROTOCOLS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name.startswith("standin")])
def test_toy_domains_are_measured_in_sequences_of_256(name, make_tiny, tiny_tokenizer):
    transformers.logging.set_verbosity_error()
    model, protocol = make_tiny("llama"), PROTOCOLS[name]
    measured = protocol.measured(model, tiny_tokenizer, limit=2)
    ids = torch.tensor(tiny_tokenizer("\n\n".join(corpora.texts(protocol.corpus))[:50_000])["input_ids"])
    apart = 256 * {"quarter": 4, "thin": 8}.get(name.rpartition("-")[2], 1)
    with torch.no_grad():
        losses = [model(row[None], labels=row[None]).loss.item() for row in (ids[:256], ids[apart : apart + 256])]
    assert measured["tokens"] == 512 and measured["perplexity"] == pytest.approx(math.exp(sum(losses) / 2), rel=1e-4)


@torch.no_grad()
def test_reassessing_reads_sequences_of_128(tmp_path, monkeypatch, tiny_llama, tiny_tokenizer):
    sentences = [f"the stream of layer {i} is scaled" for i in range(60)]
    folder = "penn_treebank"
    write_rows(tmp_path, "ptb-text-only/ptb_text_only", folder, "validation", [{"sentence": s} for s in sentences])
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path))
    measured = PROTOCOLS["reassessing-ptb"].measured(tiny_llama, tiny_tokenizer, progress=False)
    ids = torch.tensor(tiny_tokenizer("\n\n".join(sentences))["input_ids"])
    assert measured["window"] == 128 and measured["windows"] == len(ids) // 128 > 2
    assert measured["perplexity"] == pytest.approx(naive(tiny_llama, ids, 128)[0], rel=1e-4)
