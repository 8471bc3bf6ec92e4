"""The toy model's card has the numbers of its files, in tables and in sentences."""

import json

from common.toy import WEIGHTS, corpus, tasks
from reproductions.documents import readme, toy_card

FACTS, TRAINING = (json.loads((WEIGHTS / f"{name}.json").read_text()) for name in ("facts", "training"))
CARD = (WEIGHTS / "README.md").read_text()


def test_the_tables_are_those_of_the_files():
    found = toy_card.parts(FACTS, TRAINING)
    assert readme.marked(CARD) == list(found)
    assert readme.render(CARD, found) == CARD


def test_the_sentences_have_the_numbers_of_the_files():
    setting, last = TRAINING["setting"], json.loads((WEIGHTS / "training-log.jsonl").read_text().splitlines()[-1])
    told = [
        f"An {FACTS['parameters'] / 1e6:.1f} M parameter",
        f"torch {TRAINING['torch']}",
        f"{last['valid']:.3f} nats",
    ]
    told += [f"{setting['layers']} layers, {setting['hidden']} channels, {setting['heads']} heads"]
    told += [f"feed-forward {setting['feed_forward']}, vocabulary {setting['vocabulary']}", f"seed {setting['seed']}"]
    told += [f"{TRAINING['tokens'] / 1e6:.1f} M tokens, {setting['window']}-token sequences"]
    told += [f"peak rate {setting['learning_rate']}", f"{TRAINING['seconds'] / 3600:.2f} hours"]
    train = 100 - corpus.TEST_PERCENT - corpus.VALID_PERCENT
    told += [f"({train} % train, {corpus.VALID_PERCENT} % validation, {corpus.TEST_PERCENT} % test)"]
    told += [f"{corpus.MAX_SEEN_SHARE:.0%} of their {corpus.SHINGLE_WORDS}-word sequences"]
    told += [f"`{name}`" for name in tasks.TASKS]
    means, peaks = ([layer[key] for layer in FACTS["magnitudes"]] for key in ("mean", "peak"))
    told += [f"from {means[0]:.3f} before the first layer to {means[-1]:.3f}", f"at most {max(peaks):.1f} times"]
    assert not [one for one in told if one not in CARD]
