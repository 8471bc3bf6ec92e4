"""The toy model's card has the numbers of its files, in tables and in sentences, and the files those of the weights."""

import json
import math

import pytest
import torch

from common.models import loading
from common.toy import WEIGHTS, corpus, tasks

FACTS, TRAINING = (json.loads((WEIGHTS / f"{name}.json").read_text()) for name in ("facts", "training"))
CARD = (WEIGHTS / "README.md").read_text()


def test_the_tables_are_those_of_the_files():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in CARD.splitlines() if line[:1] == "|"]
    for domain, facts in FACTS["domains"].items():
        assert [domain, f"{facts['loss']:.3f}", f"{math.exp(facts['loss']):.1f}", str(facts["tokens"])] in rows
    licences = rows[rows.index(["Licence", "Sources"]) + 2 : rows.index([row for row in rows if row[0] == "Domain"][0])]
    sources = dict(part.rsplit(" ", 1) for _, named in licences for part in named.split(", "))
    assert sources == TRAINING["sources"]


@pytest.mark.slow
def test_the_files_have_what_the_weights_give():
    """The mean loss of each domain's held-out text, and the states of a few sequences, from Hugging Face's own pass."""
    model, tokenizer = loading.load("standin")
    assert sum(weight.numel() for weight in model.parameters()) == FACTS["parameters"]
    assert set(FACTS["domains"]) == set(corpus.DOMAINS)
    for domain, facts in FACTS["domains"].items():
        text = tokenizer(corpus.domain_text(domain, "test"), return_tensors="pt", verbose=False).input_ids[0]
        sequences = text[: facts["tokens"]].view(-1, 256)
        with torch.no_grad():
            losses = [model(ids, labels=ids).loss.item() * len(ids) for ids in sequences.split(16)]
        assert sum(losses) / len(sequences) == pytest.approx(facts["loss"], rel=1e-4)
    texts = [tokenizer(corpus.domain_text(name, "test"), return_tensors="pt", verbose=False) for name in corpus.DOMAINS]
    first = torch.cat([text.input_ids[0][: 12 * 256].view(-1, 256) for text in texts])
    last = []
    model.model.layers[-1].register_forward_hook(lambda module, args, out: last.append(out))
    with torch.no_grad():  # the last of Hugging Face's states is behind the final norm
        states = [*model(first, output_hidden_states=True).hidden_states[:-1], last[0]]
    for state, facts in zip(states, FACTS["magnitudes"], strict=True):
        norms = state.norm(dim=-1)
        assert state.abs().mean().item() == pytest.approx(facts["mean"], rel=0.02)  # a mean of batches' means
        assert (norms.max() / norms.median()).item() == pytest.approx(facts["peak"], rel=0.1)


def test_the_sentences_have_the_numbers_of_the_files():
    setting, last = TRAINING["setting"], json.loads((WEIGHTS / "training-log.jsonl").read_text().splitlines()[-1])
    phrases = [f"An {FACTS['parameters'] / 1e6:.1f} M parameter", f"{last['valid']:.3f} nats"]
    phrases += [f"torch {TRAINING['torch']}", f"seed {setting['seed']}"]
    phrases += [f"{setting['layers']} layers, {setting['hidden']} channels, {setting['heads']} heads"]
    phrases += [f"feed-forward {setting['feed_forward']}, vocabulary {setting['vocabulary']}"]
    phrases += [f"{TRAINING['tokens'] / 1e6:.1f} M tokens, {setting['window']}-token sequences"]
    phrases += [f"peak rate {setting['learning_rate']}", f"{TRAINING['seconds'] / 3600:.2f} hours"]
    train = 100 - corpus.TEST_PERCENT - corpus.VALID_PERCENT
    phrases += [f"({train} % train, {corpus.VALID_PERCENT} % validation, {corpus.TEST_PERCENT} % test)"]
    phrases += [f"{corpus.MAX_SEEN_SHARE:.0%} of their {corpus.SHINGLE_WORDS}-word sequences"]
    phrases += [f"`{name}`" for name in tasks.TASKS]
    means, peaks = ([layer[key] for layer in FACTS["magnitudes"]] for key in ("mean", "peak"))
    phrases += [f"from {means[0]:.3f} before the first layer to {means[-1]:.3f}", f"at most {max(peaks):.1f} times"]
    assert not [phrase for phrase in phrases if phrase not in CARD]
