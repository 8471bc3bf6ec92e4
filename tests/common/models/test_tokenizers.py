"""Tokenizers as they lie on the hub, read as their own files say."""

import json
import logging

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from common.cli import card
from common.models import checkpoint

TEXT = ["def f(x):", "return x", "the the then there", "no one knows", "12 2023 def"]


def test_a_tokenizer_that_transformers_reads_otherwise_than_its_file_is_read_as_the_file_says(
    write_checkpoint, tmp_path, caplog
):
    """CodeQwen 1.5: pieces of SentencePiece, under a model type whose class splits bytes."""
    path = write_checkpoint(tmp_path / "model", "qwen2")
    pieces = ["<unk>", "▁", "a", "d", "e", "f", "▁a", "▁d", "▁de", "▁def"]
    merges = [("▁", "d"), ("▁d", "e"), ("▁de", "f"), ("▁", "a")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    filed = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    filed.pre_tokenizer, filed.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    filed.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    ids_of_transformers = AutoTokenizer.from_pretrained(path)("def a def").input_ids
    assert ids_of_transformers != filed.encode("def a def").ids  # else there is nothing to guard against
    with caplog.at_level(logging.WARNING):
        ours = checkpoint.load_tokenizer(path)
    assert ours("def a def").input_ids == filed.encode("def a def").ids
    assert ours.decode(ours("def a def").input_ids) == "def a def"
    assert "does not split text as its tokenizer.json does; the file is used" in caplog.text
    assert f"AutoTokenizer gives a {type(AutoTokenizer.from_pretrained(path)).__name__}" in card.tokenizer_note(ours)
    assert card.tokenizer_note(AutoTokenizer.from_pretrained(path)) is None


def test_a_vocabulary_without_settings_is_saved(write_checkpoint, tmp_path):
    path = write_checkpoint(tmp_path / "model")
    (path / "tokenizer_config.json").unlink()
    model, tokenizer = checkpoint.load(path)
    saved = checkpoint.load_tokenizer(checkpoint.save(model, tokenizer, tmp_path / "saved", source=path))
    assert saved("the layers").input_ids == tokenizer("the layers").input_ids != []


def test_a_tokenizer_that_is_read_as_its_file_says_stays_what_it_is(write_checkpoint, tmp_path, caplog):
    path = write_checkpoint(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        assert type(checkpoint.load_tokenizer(path)) is type(AutoTokenizer.from_pretrained(path))
    assert not caplog.text


@pytest.mark.parametrize(
    ("name", "kind", "pieces", "size"),
    [("tokenizer.model", "LlamaTokenizer", "bpe", 60), ("spiece.model", "T5Tokenizer", "unigram", 28)],
)
def test_a_sentencepiece_model_alone_is_read_and_saved(name, kind, pieces, size, write_checkpoint, tmp_path):
    """Vicuna has a tokenizer.model and no tokenizer.json; some models of GPT-NeoX have a spiece.model."""
    path = write_checkpoint(tmp_path / "model")
    for file in path.glob("*token*"):
        file.unlink()
    (tmp_path / "text.txt").write_text("\n".join(TEXT * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(path / "tokenizer"), model_type=pieces, vocab_size=size,
        byte_fallback=False, minloglevel=2,
    )  # fmt: skip
    (path / "tokenizer.vocab").unlink()
    (path / "tokenizer.model").rename(path / name)
    settings = {"tokenizer_class": kind, "legacy": True, "extra_ids": 0}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    digest, (model, ours) = checkpoint.digest(path), checkpoint.load(path)
    saved = checkpoint.load_tokenizer(checkpoint.save(model, ours, tmp_path / "saved", source=path))
    original = sentencepiece.SentencePieceProcessor(model_file=str(path / name))
    for text in TEXT:
        for tokenizer in (ours, saved):
            assert tokenizer(text, add_special_tokens=False).input_ids == original.encode(text)
    (path / name).write_bytes((path / name).read_bytes()[:-1])
    assert checkpoint.digest(path) != digest
