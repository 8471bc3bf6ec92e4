"""SentencePiece models as tokenizers of transformers, without a repository's Python code.

transformers' LlamaTokenizer takes only pieces and merges from such a file: not whether it puts a space before a text,
normalises characters or joins spaces. Here the file determines all of it, and sentencepiece checks the result.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from common.utils.errors import UserError

_SPACE = "\u2581"  # what a space is in a piece
_BPE, _NORMAL, _CONTROL, _USER_DEFINED = 2, 1, 3, 4  # of SentencePiece's ModelProto
# Code, numbers, white space, several scripts, characters that normalisation would change, and some that need bytes.
PROBES = (
    "def f(x):\n\treturn 2023 - x  # na\u00efve \u65e5\u672c\u8a9e, don't; 650841823\n\n   \u00c4",
    "\u5927\u578b\u8bed\u8a00\u6a21\u578b\u5728 2023 \u5e74\uff0c\u7b2c 1/2 \u7ae0\u3002",
    "The model\u2019s layers,\u3000and\u00a0so  on.",
    " one space before, two behind  ",
    "\ufb01 \u00b2 \u00bd \uff21 \U0001f642 \u2581 \r\n",
)


def read(file: Path, beside: Sequence[str] = (), begin: Sequence[str] = (), **options) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a SentencePiece model of byte pairs, as a rule tokenizer.model.

    ``beside`` are tokens that follow its pieces and that no text contains; every sequence starts with those in ``begin``.

    Raises:
        UserError: the file cannot be read, holds another kind of model, or splits the test texts differently from the
            tokenizer.
    """
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(file.read_bytes())
        original = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    except Exception as error:  # protobuf's own, a RuntimeError of sentencepiece, an OSError
        raise UserError(f"cannot read {file}: it is no SentencePiece model. Download it again") from error
    if proto.trainer_spec.model_type != _BPE:
        raise UserError(
            f"cannot read {file}: its pieces are not made by byte-pair encoding. Convert it to tokenizer.json"
        )
    backend = _backend(proto, beside)
    ids = [(token, backend.token_to_id(token)) for token in begin]
    if begin:
        backend.post_processor = processors.TemplateProcessing(single=[*begin, "$A"], special_tokens=ids)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    symbols = [f"a{piece.piece}b {piece.piece} c" for piece in proto.pieces if piece.type == _USER_DEFINED]
    for probe in (*PROBES, *symbols[:1]):
        expected, actual = original.encode(probe), tokenizer(probe, add_special_tokens=False).input_ids
        if expected != actual:
            raise UserError(
                f"cannot read {file}: {probe!r} would be split into {actual}, and sentencepiece splits it into {expected}. "
                "Convert the file to tokenizer.json"
            )
    return tokenizer


def _backend(proto, beside: Sequence[str]) -> Tokenizer:
    """Return what splits text as the model does."""
    pieces = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    vocabulary = pieces | {token: len(pieces) + number for number, token in enumerate(beside)}
    bytes_too = proto.trainer_spec.byte_fallback
    unknown = proto.pieces[proto.trainer_spec.unk_id].piece
    merges = list(_merges(proto, pieces))
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_too))
    rules, normalizer = [], proto.normalizer_spec
    if normalizer.precompiled_charsmap:
        mapped = normalizers.Precompiled(normalizer.precompiled_charsmap)
        # tokenizers looks up what is seen as one character, and takes a carriage return and a new line for one
        rules += [normalizers.Replace("\r", mapped.normalize_str("\r")), mapped]
    if normalizer.remove_extra_whitespaces:
        rules += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if normalizer.add_dummy_prefix:
        rules.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), *([decoders.ByteFallback()] if bytes_too else []), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if normalizer.add_dummy_prefix else [])])
    # Symbols are found in the text as it is split: where a space is put before it, that would be before a symbol as well.
    options = {"normalized": not normalizer.add_dummy_prefix}
    backend.add_tokens([AddedToken(p.piece, special=False, **options) for p in proto.pieces if p.type == _USER_DEFINED])
    backend.add_special_tokens([AddedToken(p.piece, normalized=False) for p in proto.pieces if p.type == _CONTROL])
    return backend


def _merges(proto, pieces: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that become a piece, best piece first."""
    for piece in sorted((p for p in proto.pieces if p.type == _NORMAL), key=lambda p: -p.score):
        text = piece.piece
        for cut in range(1, len(text)):
            if text[:cut] in pieces and text[cut:] in pieces:
                yield text[:cut], text[cut:]
