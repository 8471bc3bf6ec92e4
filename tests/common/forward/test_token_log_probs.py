"""Log-likelihoods of single tokens against the full logits of Hugging Face's own forward pass."""

import random

import pytest
import torch

from common.evaluation.multiple_choice import SharedContextLM
from common.forward import losses, token_log_probs
from common.forward.token_log_probs import target_scores
from common.models.decoder import Decoder


@pytest.fixture
def ids():
    return torch.randint(3, 320, (3, 13), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("head_rows", "step"), [(256, 16), (5, 2), (13, 13)])
@torch.inference_mode()
def test_scores_are_those_of_the_full_logits(tiny, ids, monkeypatch, head_rows, step):
    monkeypatch.setattr(token_log_probs, "HEAD_ROWS", head_rows)
    monkeypatch.setattr(token_log_probs, "ROWS", {"cpu": step})
    full = tiny(ids).logits.flatten(0, 1)
    likely = full.double().log_softmax(-1)
    hidden = tiny.model(ids).last_hidden_state.flatten(0, 1)
    chosen = torch.tensor([0, 4, 5, 12, 13, 20, 21, 22, 23, 38])
    generator = torch.Generator().manual_seed(1)
    # one to three targets at each position, the likeliest token among them
    rows = torch.arange(10).repeat_interleave(torch.randint(1, 4, (10,), generator=generator))
    tokens = torch.randint(3, 320, rows.shape, generator=generator)
    tokens[::2] = full[chosen[rows[::2]]].argmax(-1)
    nll, greedy = target_scores(Decoder(tiny), hidden[chosen], rows, tokens)
    torch.testing.assert_close(nll.double(), -likely[chosen[rows], tokens], atol=2e-5, rtol=0)
    assert torch.equal(greedy, full[chosen[rows]].argmax(-1) == tokens)
    assert greedy.any() and not greedy.all()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("rows", "head_rows", "step"), [(512, 256, 16), (11, 4, 3), (4, 7, 2)])
def test_losses_of_a_batch_are_those_of_the_full_logits(tiny, ids, monkeypatch, recorded, rows, head_rows, step):
    """Whether gradients are recorded (all logits of a part in float32) or not (a few positions at a time)."""
    monkeypatch.setattr(losses, "ROWS", rows)
    monkeypatch.setattr(losses, "HEAD_ROWS", head_rows)
    monkeypatch.setattr(token_log_probs, "ROWS", {"cpu": step})
    decoder = Decoder(tiny)
    with torch.set_grad_enabled(recorded):
        hidden = decoder.run(decoder.embed_tokens(ids), 0)
        computed = losses.next_token_loss(decoder, hidden, ids)
        likely = tiny(ids).logits.double().log_softmax(-1)[:, :-1]
    expected = -likely.gather(2, ids[:, 1:, None])[..., 0].mean(1)
    assert computed.shape == (3,) and computed.dtype == torch.float64 and computed.requires_grad == recorded
    torch.testing.assert_close(computed, expected, atol=2e-5, rtol=0)


def test_the_head_runs_once_for_each_prefix_that_predicts(tiny, tiny_tokenizer):
    rng = random.Random(2)
    contexts = [[rng.randrange(3, 300) for _ in range(rng.randrange(3, 9))] for _ in range(9)]
    expected = [
        (("c", "a"), context, [rng.randrange(3, 7) for _ in range(rng.randrange(1, 4))])
        for context in contexts
        for _ in range(4)
    ]
    seen = []
    tiny.lm_head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[:-1].numel()))
    lm = SharedContextLM(tiny, tiny_tokenizer, batch_size=4)
    lm._loglikelihood_tokens(expected, disable_tqdm=True)
    prefixes = {(*context, *choice[:end]) for _, context, choice in expected for end in range(len(choice))}
    assert sum(seen) == len(prefixes) < lm.forward_tokens
