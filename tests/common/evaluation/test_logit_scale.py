"""The scale of the logits, against a naive loop over full logits and a model whose scale is known."""

import pytest
import torch

from common.evaluation import logit_scale
from common.evaluation.windowed_perplexity import split_into_sequences, token_nlls
from common.forward import token_log_probs
from common.utils.errors import UserError


@pytest.fixture
def sequences():
    return split_into_sequences(torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(5)), 12)


@torch.no_grad()
def test_losses_are_those_of_full_logits_times_the_factor(tiny, sequences, monkeypatch):
    monkeypatch.setattr(token_log_probs, "HEAD_ROWS", 4)
    monkeypatch.setattr(logit_scale, "HEAD_ROWS", 4)
    monkeypatch.setattr(logit_scale, "ROWS", {"cpu": 3})
    monkeypatch.setattr(logit_scale, "FACTORS", (0.7, 1.0, 1.3))
    losses = logit_scale.sequence_nlls(tiny, sequences)
    assert losses.shape == (5, 3)
    for place, factor in enumerate((0.7, 1.0, 1.3)):
        for window, loss in zip(sequences, losses[:, place], strict=True):
            logits = factor * tiny(window[None]).logits[0, :-1].double()
            expected = torch.nn.functional.cross_entropy(logits, window[1:])
            assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert torch.allclose(losses[:, 1].float(), token_nlls(tiny, sequences).mean(1), rtol=1e-5)


@torch.no_grad()
def test_a_head_that_is_twice_too_large_wants_half_the_logits(tiny_llama):
    """Tokens drawn from the model itself want its own logits; with the head doubled they want half."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 320, (96, 1), generator=generator)
    tiny_llama.lm_head.weight.mul_(30)  # a random model hardly prefers any token
    cache = None
    for _ in range(40):
        out = tiny_llama(ids[:, -1:], past_key_values=cache, use_cache=True)
        chances, cache = out.logits[:, -1].softmax(-1), out.past_key_values
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
    own = logit_scale.fitted(logit_scale.sequence_nlls(tiny_llama, ids))[1]
    assert own == pytest.approx(1.0, abs=0.11)
    tiny_llama.lm_head.weight.mul_(2)
    assert logit_scale.fitted(logit_scale.sequence_nlls(tiny_llama, ids))[1] == pytest.approx(own / 2, abs=0.06)


def test_no_sequence_is_judged_by_a_factor_fitted_to_it(monkeypatch):
    monkeypatch.setattr(logit_scale, "FACTORS", (0.5, 1.0))
    losses = torch.tensor([[1.0, 9.0], [5.0, 3.0], [2.0, 9.0], [7.0, 4.0]], dtype=torch.float64)
    held_out, best = logit_scale.fitted(losses)
    assert held_out.tolist() == [9.0, 5.0, 9.0, 7.0]  # even windows prefer the first factor, odd ones the second
    assert best == 0.5  # 15 against 25 in all
    with pytest.raises(UserError, match="two or more"):
        logit_scale.fitted(losses[:1])
