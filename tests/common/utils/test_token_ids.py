"""A tokenizer that appends its end token, against the same one without it."""

import copy
import random

import pytest
import torch
from lm_eval.api.instance import Instance
from tokenizers.processors import TemplateProcessing

from common import calibration
from common.calibration import corpora
from common.evaluation.generation import complete
from common.evaluation.multiple_choice import SharedContextLM
from common.training import instructions
from common.utils.errors import UserError
from common.utils.token_ids import open_ended


def ending(tokenizer, single):
    changed = copy.deepcopy(tokenizer)
    special_tokens = [(token, changed.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    changed.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special_tokens)
    return changed


@pytest.fixture(params=[("<s> $A </s>", "<s> $A"), ("$A </s>", "$A")], ids=["begin and end", "end"])
def pair(request, tiny_tokenizer):
    """The tokenizer that ends a text, and the one it should be read as."""
    return tuple(ending(tiny_tokenizer, single) for single in request.param)


def test_a_tokenizer_that_ends_no_text_is_left_alone(tiny_tokenizer):
    assert open_ended(tiny_tokenizer) is tiny_tokenizer
    begins = ending(tiny_tokenizer, "<s> $A")
    assert open_ended(begins) is begins


def test_one_that_cannot_be_changed_is_refused(pair):
    pair[0].__class__ = type("Slow", (type(pair[0]),), {"is_fast": False})
    with pytest.raises(UserError, match="add_eos_token"):
        open_ended(pair[0])


def test_texts_and_rows_do_not_depend_on_the_end_token(pair):
    ends, plain = pair
    text = "the layers are removed"
    for example in (instructions.Example("Name it.", "", text), instructions.Example("Say.", "", text * 90)):
        assert instructions.encode(ends, example, 128) == instructions.encode(plain, example, 128)
    rows = [instructions.blocks(tokenizer, [text, "a model"] * 9, length=12, count=4) for tokenizer in pair]
    assert rows[0] == rows[1]
    assert torch.equal(*(corpora.encode(tokenizer, text) for tokenizer in pair))
    texts = [f"{text} and scaled {number}" * 9 for number in range(40)]
    options = {"length": 16, "count": 3}
    first, second = (
        calibration.sample_documents(tokenizer, texts, generator=random.Random(0), **options) for tokenizer in pair
    )
    assert torch.equal(first, second)


def test_scores_and_answers_do_not_depend_on_the_end_token(pair, tiny_llama):
    contexts = ("the layers", "the model and the stream", "")
    requests = [Instance("loglikelihood", {}, (context, " are scaled"), n) for n, context in enumerate(contexts)]
    models = [SharedContextLM(tiny_llama, tokenizer) for tokenizer in pair]
    ends, plain = (model.loglikelihood(requests, disable_tqdm=True) for model in models)
    assert ends == plain
    assert complete(tiny_llama, pair[0], ["the layers"], 6) == complete(tiny_llama, pair[1], ["the layers"], 6)
    until = [Instance("generate_until", {}, ("the layers of", {"until": ["\n"], "max_gen_toks": 6}), 0)]
    generated = [model.generate_until(until, disable_tqdm=True) for model in models]
    assert generated[0] == generated[1]
