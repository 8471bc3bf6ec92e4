"""The shared-context scorer against lm-eval's own HFLM, on every architecture."""

import math
import random

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from common.console import progress
from common.evaluation import multiple_choice
from common.evaluation.multiple_choice import SharedContextLM
from common.evaluation.prefix_trees import grow
from common.hooks import attach_patch
from common.models import loading, registry
from common.models.files import gguf_wheels
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from papers.linearpatch import LinearPatch
from tests.massive_model import FIRST, WRITER, planted

WORDS = ["the", "layers", "of", "a", "model", "are", "removed", "and", "stream", "is", "scaled", "zebra", "quick"]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def requests(seed: int = 0, items: int = 6) -> list[Instance]:
    """Four choices on one context; contexts that differ, same ending; one-token choices; no context; trailing space."""
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    for item in range(items):
        context = text(rng, rng.randrange(4, 16)) + (" " if item == 1 else "")
        pairs += [(context, " " + text(rng, rng.randrange(1, 6))) for _ in range(4)]
        stem = text(rng, 8)
        pairs += [(f"{stem} {option} is", " scaled by one") for option in ("model", "stream")]
    pairs += [("the answer is", choice) for choice in ("a", "b", "c", "d")]
    pairs += [("", "the stream is scaled"), ("", "the stream is removed"), ("the answer is", "a")]
    return instances(pairs)


def reference(model, tokenizer, requests, **options):
    lm = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=4, **options)
    return lm.loglikelihood(requests, disable_tqdm=True)


def instances(pairs) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def compare(ours, expected, error=1e-4):
    for (ours_ll, ours_greedy), (their_ll, their_greedy) in zip(ours, expected, strict=True):
        assert ours_ll == pytest.approx(their_ll, abs=error)
        assert ours_greedy is their_greedy


def test_a_tokenizer_without_special_tokens_is_refused_and_stays_what_it_is(tiny_llama, tiny_tokenizer):
    plain = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer.backend_tokenizer)
    size = len(plain)
    lm = SharedContextLM(tiny_llama, plain, max_length=16)
    with pytest.raises(UserError, match="neither a start nor an end token"):
        lm.loglikelihood(instances([("the answer is", "a")]))
    assert plain.pad_token is None and len(plain) == size


@pytest.mark.parametrize("attention", ["default", "eager"])
def test_same_log_likelihoods_as_hflm(tiny, tiny_tokenizer, attention):
    if attention == "eager":
        tiny.set_attn_implementation("eager")
    lm = SharedContextLM(tiny, tiny_tokenizer, batch_size=3)
    compare(lm.loglikelihood(requests()), reference(tiny, tiny_tokenizer, requests()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_real_models_of_packages_score_as_with_hflm(name):
    """Real words through a real tokenizer, without a context, too; skipped where the cache does not hold the model."""
    if not gguf_wheels.folder(registry.get(name)).is_dir():
        pytest.skip(f"{name} is not in the cache")
    model, tokenizer = loading.load(name, dtype="float32")
    pairs = [
        ("Question: What do plants need to make food?\nAnswer:", " sunlight"),
        ("Question: What do plants need to make food?\nAnswer:", " a naïve café in 2024"),
        ("The trophy didn't fit into the suitcase because the trophy was too", " large."),
        ("", "The capital of France is Paris."),
    ]
    ours = SharedContextLM(model, tokenizer).loglikelihood(instances(pairs))
    compare(ours, reference(model, tokenizer, instances(pairs)), error=2e-3)


@pytest.mark.parametrize("position", [3, 4])
def test_pruned_and_patched_models_score_as_with_hflm(tiny, tiny_tokenizer, make_patch, position):
    remove_layers(tiny, [2, 3])
    attach_patch(tiny, position, make_patch(0.5))
    ours = SharedContextLM(tiny, tiny_tokenizer).loglikelihood(requests(1))
    compare(ours, reference(tiny, tiny_tokenizer, requests(1)))


def test_what_tells_massive_tokens_from_others_is_not_misled_by_padding(tiny_llama, tiny_tokenizer):
    model = planted(tiny_llama)
    model.model.embed_tokens.weight.data[0, 0] = model.model.embed_tokens.weight[FIRST, 0]  # 0 would be massive, too
    attach_patch(model, WRITER + 1, LinearPatch(1.0 + torch.rand(64), "diagonal", acts_on="ordinary"), "linearpatch")
    expected = []
    for size in (24, 6):  # more than half of the shorter row is padding
        ids = [FIRST, *torch.randint(10, 290, (size,), generator=torch.Generator().manual_seed(size)).tolist()]
        expected += [(("", ""), ids, [choice, 11]) for choice in (20, 30)]
    scored = [
        SharedContextLM(model, tiny_tokenizer, batch_size=size)._loglikelihood_tokens(expected, disable_tqdm=True)
        for size in (1, 8)
    ]
    compare(*scored)


def test_a_window_that_the_architecture_ignores_is_ignored(tiny_llama, tiny_tokenizer):
    """As in the config of a Mistral model that was converted to Llama's names."""
    tiny_llama.config.sliding_window = 4
    ours = SharedContextLM(tiny_llama, tiny_tokenizer).loglikelihood(requests())
    compare(ours, reference(tiny_llama, tiny_tokenizer, requests()))


def test_greedy_continuations_are_recognised(tiny, tiny_tokenizer):
    context = "the layers of a model"
    ids = torch.tensor([tiny_tokenizer.encode(context)])
    with torch.inference_mode():
        for _ in range(3):
            ids = torch.cat([ids, tiny(ids).logits[:, -1:].argmax(-1)], dim=1)
    lm = SharedContextLM(tiny, tiny_tokenizer)
    prompt, continuation = ids[0, :-3].tolist(), ids[0, -3:].tolist()
    other = [*continuation[:2], (continuation[2] + 1) % 300]
    asked = [(("c", "a"), prompt, continuation), (("c", "b"), prompt, other)]
    answers = lm._loglikelihood_tokens(asked, disable_tqdm=True)
    assert [greedy for _, greedy in answers] == [True, False]


def test_left_truncation_is_that_of_hflm(tiny, tiny_tokenizer):
    lm = SharedContextLM(tiny, tiny_tokenizer, max_length=32)
    compare(lm.loglikelihood(requests(3)), reference(tiny, tiny_tokenizer, requests(3), max_length=32))


def test_rolling_log_likelihood_is_that_of_hflm(tiny_llama, tiny_tokenizer):
    asked = [Instance("loglikelihood_rolling", {}, (text(random.Random(i), 30),), i) for i in range(2)]
    lm = SharedContextLM(tiny_llama, tiny_tokenizer, max_length=16)
    hflm = HFLM(pretrained=tiny_llama, tokenizer=tiny_tokenizer, backend="causal", max_length=16, batch_size=2)
    ours, expected = (model.loglikelihood_rolling(asked, disable_tqdm=True) for model in (lm, hflm))
    assert ours == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_texts_encoded_together_are_lm_evals_tokens(tiny_llama, tiny_tokenizer, monkeypatch, options):
    pairs = [("the layers ", "of a"), ("the layers", " of"), ("<s>the layers", " of"), ("  ", "zebra"), ("", "zebra")]
    asked = instances([*pairs, ("the layers", " are"), ("odd é ü 你好", "\n\t  two  spaces ")])
    seen, calls = [], []
    ours = SharedContextLM(tiny_llama, tiny_tokenizer, **options)
    for lm in (ours, HFLM(pretrained=tiny_llama, tokenizer=tiny_tokenizer, backend="causal", **options)):
        monkeypatch.setattr(lm, "_loglikelihood_tokens", lambda new, **_: seen.append(new) or [])
        lm.loglikelihood(asked, disable_tqdm=True)
    assert seen[0] == seen[1] and len(seen[0]) == 7
    monkeypatch.setattr(HFLM, "tok_encode", lambda self, text, *_: calls.append(text) or [1, 2, 3])
    ours.loglikelihood(asked, disable_tqdm=True)
    assert set(calls) <= {"<s>the layers", "<s>the layers of", "zebra"}


def test_every_distinct_prefix_is_run_once(tiny_llama, tiny_tokenizer):
    context = list(range(10, 30))
    choices = [[40, 41, 42], [40, 41, 43], [50], [51]]
    lm = SharedContextLM(tiny_llama, tiny_tokenizer)
    lm._loglikelihood_tokens([(("c", str(c)), context, c) for c in choices], disable_tqdm=True)
    # the context, then 40 and 41; last tokens are only predicted
    assert lm.forward_tokens == 22


def test_a_tree_stops_growing_and_holds_no_unrelated_requests():
    sequences = [[1, 2, 3, 4, first, 9] for first in range(10)]
    assert [len(tree) for tree in grow(sequences, max_tree=8)] == [8] * 5
    assert len(grow(sequences)) == 1
    assert len(grow([[1, *range(10, 30)], [1, *range(40, 60)]])) == 2


def test_the_same_input_twice_is_read_once_however_long_it_is():
    """As of choices of one token after a context that is longer than any tree."""
    longest = list(range(30))
    paths_by_size = {len(tree): sorted(tree.paths) for tree in grow([longest, [7, 8], longest, longest], max_tree=8)}
    assert paths_by_size == {30: [0, 2, 3], 2: [1]}


def test_batches_hold_every_tree_once_and_no_more_tokens_than_allowed(tiny_llama, tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(multiple_choice, "MAX_TOKENS", {"cpu": 40})
    lm = SharedContextLM(tiny_llama, tiny_tokenizer, batch_size=3)
    trees = grow([[first] * length for first, length in enumerate([60, 18, 17, 12, 9, 9, 9, 9, 2])])
    batches = lm._batches(trees)
    assert [tree for batch in batches for tree in batch] == trees
    assert [[len(tree) for tree in batch] for batch in batches] == [[60], [18, 17], [12, 9, 9], [9, 9, 2]]


def test_linear_attention_is_scored_as_hflm_does(tiny_llama, tiny_tokenizer, monkeypatch):
    lm = SharedContextLM(tiny_llama, tiny_tokenizer)
    expected = lm.loglikelihood(requests())
    monkeypatch.setattr(multiple_choice.Decoder, "attends", False)
    lm.forward_tokens = 0
    compare(lm.loglikelihood(requests()), expected)
    assert lm.forward_tokens == 0


def test_what_cannot_be_scored_is_named(tiny_llama, tiny_tokenizer):
    lm = SharedContextLM(tiny_llama, tiny_tokenizer, max_length=4)
    with pytest.raises(UserError, match="no tokens"):
        lm._loglikelihood_tokens([(("a", ""), [5], [])], disable_tqdm=True)
    with pytest.raises(UserError, match="continuation of 5 tokens: the model reads 4"):
        lm._loglikelihood_tokens([(("a", "b"), [5], [6] * 5)], disable_tqdm=True)


def test_off_a_terminal_scoring_says_how_far_it_is(tiny_llama, tiny_tokenizer, monkeypatch, capsys):
    """Lines for a log, no bar of lm-eval's among them; nothing where it is not to be shown."""
    monkeypatch.setattr(progress, "MINUTE", 0.0)
    lm = SharedContextLM(tiny_llama, tiny_tokenizer, batch_size=1)
    lm.loglikelihood(requests(1))
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("scoring: choice ") for line in lines)
    count = f"{len(requests(1)):,}"
    assert lines[-1].startswith(f"scoring: choice {count} of {count}, ")
    lm.loglikelihood(requests(1), disable_tqdm=True)
    assert capsys.readouterr().err == ""


def test_off_a_terminal_generating_says_how_far_it_is(tiny_llama, tiny_tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(progress, "MINUTE", 0.0)
    options = {"until": ["\n"], "max_gen_toks": 3}
    asked = [Instance("generate_until", {}, (text, options), i) for i, text in enumerate(("one two", "three"))]
    lm = SharedContextLM(tiny_llama, tiny_tokenizer, batch_size=1)
    answers = lm.generate_until(asked)
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert [line.split(",")[0] for line in lines] == ["generating: answer 1 of 2", "generating: answer 2 of 2"]
    assert lm.generate_until(asked, disable_tqdm=True) == answers
    assert "generating" not in capsys.readouterr().err


def test_scores_that_are_not_finite_are_refused(tiny_llama, tiny_tokenizer):
    """argmax of NaNs is 0: an accuracy of items whose first answer is right."""
    tiny_llama.model.norm.weight.data[0] = math.nan
    with pytest.raises(UserError, match="not finite in float32, so answers"):
        SharedContextLM(tiny_llama, tiny_tokenizer).loglikelihood(requests(1))
    with pytest.raises(UserError, match="not finite in bfloat16, .*; try --dtype"):
        SharedContextLM(tiny_llama.bfloat16(), tiny_tokenizer).loglikelihood(requests(1))


def test_as_many_answers_are_generated_together_as_their_keys_and_values_have_room(tiny_llama):
    """LLaMA-2-13B in float16: 0.82 MB a token, so 3.36 GB a sequence of 4,096; in half of 60 GB there are eight."""
    heads = {"num_attention_heads": 40, "num_key_value_heads": 40}
    large = type(tiny_llama.config)(hidden_size=5120, num_hidden_layers=40, **heads)
    for tokens, room, answers in ((4096, 60 * 10**9, 8), (4096, 10**9, 1), (256, 60 * 10**9, 64)):
        assert multiple_choice.generated_together(large, 2, tokens, room, 64) == answers
    cache = tiny_llama(torch.ones(1, 7, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert multiple_choice.generated_together(tiny_llama.config, 4, 7, 2 * 5 * held, 64) == 5


def test_long_contexts_with_other_frequencies_score_as_alone(tiny_tokenizer):
    """longrope takes one set of frequencies for a batch, by its longest sequence: HFLM is right one at a time alone."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    config = AutoConfig.for_model(
        "llama", vocab_size=320, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, initializer_range=0.5,
        rope_parameters=rope | {"short_factor": [1.0] * 8, "long_factor": [2.0, 5.0, 3.0, 9.0, 2.0, 7.0, 1.5, 4.0]},
    )  # fmt: skip
    torch.manual_seed(0)
    model, rng = AutoModelForCausalLM.from_config(config).eval(), random.Random(1)
    shared = text(rng, 9)
    pairs = [(f"{shared} {text(rng, words)}", " river") for words in (1, 2, 4, 6, 9, 14)]
    pairs += [(shared, " river" * times) for times in (1, 3, 30)]
    lengths = [len(tiny_tokenizer("".join(pair))["input_ids"]) - 1 for pair in pairs]
    assert min(lengths) < 60 and max(lengths) > 70
    alone = HFLM(pretrained=model, tokenizer=tiny_tokenizer, backend="causal", batch_size=1)
    ours = SharedContextLM(model, tiny_tokenizer).loglikelihood(instances(pairs), disable_tqdm=True)
    compare(ours, alone.loglikelihood(instances(pairs)))


def test_a_second_model_is_asked_the_same_batches_and_answers_as_alone(make_tiny, tiny_tokenizer, monkeypatch):
    pairs = [("a b c", f" layer {word}") for word in "uvwxyz"]
    asked = instances([*pairs, ("the stream", " is"), ("the stream", " of layers")])
    models = [make_tiny("llama"), make_tiny("llama")]
    with torch.no_grad():
        models[1].lm_head.weight.mul_(-0.5)
    alone = []
    for model in models:
        monkeypatch.setattr(multiple_choice, "_planned", {})
        alone.append(SharedContextLM(model, tiny_tokenizer).loglikelihood(asked))
    monkeypatch.setattr(multiple_choice, "_planned", {})
    grown = []
    monkeypatch.setattr(multiple_choice, "grow", lambda *args, **options: grown.append(1) or grow(*args, **options))
    together = [SharedContextLM(model, tiny_tokenizer).loglikelihood(asked) for model in models]
    assert together == alone and together[0] != together[1] and len(grown) == 1


def test_planned_batches_are_bounded(tiny_llama, tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(multiple_choice, "_planned", {})
    for bound, plans in ((0, 0), (10**6, 3)):
        monkeypatch.setattr(multiple_choice, "REMEMBERED_BYTES", bound)
        for word in ("one", "two", "three"):
            SharedContextLM(tiny_llama, tiny_tokenizer).loglikelihood(instances([(word, " layer")]))
        assert len(multiple_choice._planned) == plans
