"""Greedy generation against a loop over full forward passes, and the stand-in's generation benchmark."""

import pytest
import torch
from heads import greedy_text
from lm_eval.api.instance import Instance

import papers
from common.evaluation import generation
from common.evaluation.multiple_choice import SharedContextLM
from common.hooks import attach_patch
from common.models.surgery import remove_layers
from common.utils.errors import UserError
from papers.linearpatch import LinearPatch
from tests.massive_model import FIRST, WRITER, planted

papers.load_steps()  # and the papers' prompts

PROMPTS = ["the layers", "the stream of a model is scaled and the layers are", "a", "removed and scaled"]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_texts_are_those_of_a_naive_loop(make_tiny, tiny_tokenizer, monkeypatch, name):
    model = make_tiny(name)
    remove_layers(model, [2, 3])
    model.generation_config.do_sample = True  # a model's own settings are not used
    model.generation_config.repetition_penalty = 5.0
    monkeypatch.setattr(generation, "BATCH", 3)
    texts = generation.complete(model, tiny_tokenizer, PROMPTS, 6)
    assert texts == [greedy_text(model, tiny_tokenizer, prompt, 6) for prompt in PROMPTS]


def test_a_long_prompt_is_cut_from_the_left(tiny_llama, tiny_tokenizer):
    tiny_llama.config.max_position_embeddings = 12
    long = "the layers of a model are removed " * 4
    ending = tiny_tokenizer.decode(tiny_tokenizer(long)["input_ids"][-8:])
    assert generation.complete(tiny_llama, tiny_tokenizer, [long], 4) == [
        greedy_text(tiny_llama, tiny_tokenizer, ending, 4)
    ]


def test_padding_hides_no_massive_token_from_a_patch(tiny_llama, tiny_tokenizer):
    model = planted(tiny_llama)
    [begin] = tiny_tokenizer("q", add_special_tokens=False).input_ids
    embedding = model.model.embed_tokens.weight.data
    embedding[[tiny_tokenizer.pad_token_id, begin], 0] = embedding[FIRST, 0]  # padding would be massive, too
    scales = torch.randn(64, generator=torch.Generator().manual_seed(2))
    attach_patch(model, WRITER + 1, LinearPatch(scales, "diagonal", acts_on="ordinary"), "linearpatch")
    prompts = ["q0", "q0 the", "q the layers", "q" + " the layers of a model are removed" * 3]
    expected = [greedy_text(model, tiny_tokenizer, prompt, 6) for prompt in prompts]
    assert generation.complete(model, tiny_tokenizer, prompts, 6) == expected
    options = {"until": ["zebra"], "max_gen_toks": 6}
    asked = [Instance("generate_until", {}, (prompt, options), i) for i, prompt in enumerate(prompts)]
    assert SharedContextLM(model, tiny_tokenizer, batch_size=4).generate_until(asked, disable_tqdm=True) == expected


def test_what_cannot_be_generated_is_named(tiny_llama, tiny_tokenizer):
    tiny_llama.config.max_position_embeddings = 4
    with pytest.raises(UserError, match="the model reads 4 in all"):
        generation.complete(tiny_llama, tiny_tokenizer, ["a"], 4)


def test_repetition_shows_in_the_share_of_distinct_bigrams():
    assert generation.distinct_bigrams("of the 1900s of the 1900s of the 1900s") == 3 / 8
    assert generation.distinct_bigrams("a b c") == 1
    assert generation.distinct_bigrams("word") is None


SETS = [pytest.param(n, marks=[pytest.mark.slow] * n.startswith("standin")) for n in generation.PROMPT_SETS]


@pytest.mark.parametrize("name", SETS)
def test_prompt_sets_keep_their_texts(tiny_llama, tiny_tokenizer, monkeypatch, name):
    prompts = generation.PROMPT_SETS[name].prompts()
    monkeypatch.setattr(generation, "complete", lambda *a: [f"text {i}" for i in range(len(prompts))])
    values, errors, details = generation.generations(tiny_llama, tiny_tokenizer, name)
    assert values == {"distinct_2": 1.0, "words": 2.0} and errors == {}
    assert details["prompts"] == prompts and details["text-1"] == "text 0"
    assert len(prompts) == {"laco-xsum": 1}.get(name, 3)


@pytest.mark.slow  # reads the stand-in's corpus
def test_the_toys_generation_benchmark(tiny_llama, tiny_tokenizer, monkeypatch):
    """A model that says what is right gets everything, one that says something else nothing."""
    from common.toy import exam, tasks

    right = {}
    for name, (delimiter, _) in generation._LINES.items():
        for row in tasks.build(name, generation.LINES):
            right[row["question"] + delimiter] = row["choices"][row["answer"]] + "\nand more"
    for subject in (subject for group in exam.CATEGORIES.values() for subject in group):
        for row in exam.questions(subject):
            right[row["question"]] = row["choices"][row["answer"]]
    monkeypatch.setattr(generation, "complete", lambda m, t, prompts, tokens: [right[prompt] for prompt in prompts])
    values, errors, details = generation.docstring_generation(tiny_llama, tiny_tokenizer)
    assert values == pytest.approx({"exact_match": 1, "rouge_1": 1, "rouge_l": 1})
    assert details["items"] == [80, 57]
    assert {key: scores.shape for key, scores in details["outcomes"].items()} == {
        "exact_match": (80,), "rouge_1": (57,), "rouge_l": (57,)
    }  # fmt: skip
    monkeypatch.setattr(generation, "complete", lambda m, t, prompts, tokens: ["zzz qqq"] * len(prompts))
    values, errors, _ = generation.docstring_generation(tiny_llama, tiny_tokenizer, limit=5)
    assert values == {"exact_match": 0, "rouge_1": 0, "rouge_l": 0}
    assert errors.keys() == values.keys()
