"""Instruction data, and plain text, as rows of token ids and labels.

An example is an instruction, an optional input and a response. It is written in the template of Stanford Alpaca (Taori et
al. 2023); the loss is on the response alone. Tokenisation is that of LLM-Pruner's and Reassessing's code: the whole text at
once, cut at `CUTOFF` tokens, the end token appended when there is room, and as many labels masked as the prompt alone has
tokens. Rows are padded on the left when they are batched (`common.training.finetuning`).
"""

import hashlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.calibration import corpora
from common.utils.errors import UserError, unknown
from common.utils.token_ids import open_ended

log = logging.getLogger(__name__)

CUTOFF = 256
IGNORE = -100
COLUMNS = ("instruction", "input", "output")
_OPENING = "Below is an instruction that describes a task"
_REQUEST = "Write a response that appropriately completes the request."
TOY_INSTRUCTION = "Summarise what the function does."


@dataclass(frozen=True)
class Example:
    """One instruction with its response; input is '' if there is none."""

    instruction: str
    input: str
    response: str


def prompt(instruction: str, input: str = "") -> str:
    """Return everything before the response, in Stanford Alpaca's template.

    >>> prompt("Add.", "1 2").splitlines()[-4:]
    ['### Input:', '1 2', '', '### Response:']
    """
    if input:
        context = f"{_OPENING}, paired with an input that provides further context. {_REQUEST}"
        return f"{context}\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
    return f"{_OPENING}. {_REQUEST}\n\n### Instruction:\n{instruction}\n\n### Response:\n"


def encode(tokenizer, example: Example, cutoff: int = CUTOFF) -> dict[str, list[int]]:
    """Return ``{"input_ids", "labels"}`` of one example; labels are -100 on the prompt, which may fill the entire row."""
    tokenizer, before = open_ended(tokenizer), prompt(example.instruction, example.input)
    masked = len(tokenizer(before, truncation=True, max_length=cutoff)["input_ids"])
    ids = list(tokenizer(before + example.response, truncation=True, max_length=cutoff)["input_ids"])
    end = tokenizer.eos_token_id
    if end is not None and len(ids) < cutoff and ids[-1] != end:
        ids.append(end)
    return {"input_ids": ids, "labels": [IGNORE] * min(masked, len(ids)) + ids[masked:]}


def rows(tokenizer, examples: Iterable[Example], cutoff: int = CUTOFF) -> list[dict[str, list[int]]]:
    """Return the rows of all examples in order; those whose prompt leaves no room for a response are left out and counted.

    Raises:
        UserError: no row is left.
    """
    encoded = [encode(tokenizer, example, cutoff) for example in examples]
    trainable = [row for row in encoded if any(label != IGNORE for label in row["labels"])]
    if not trainable:
        raise UserError(
            f"no example has a response within {cutoff} tokens, the most that is read; shorten the instructions and inputs"
        )
    if len(trainable) < len(encoded):
        left_out = len(encoded) - len(trainable)
        log.warning("%d of %d examples have no response within %d tokens: left out", left_out, len(encoded), cutoff)
    return trainable


def from_table(table, *, name: str = "the data", skip_empty: bool = False) -> list[Example]:
    """Return examples from a table, a `datasets.Dataset` or a list of mappings, with the columns `COLUMNS`.

    ``skip_empty``: leave out examples without a response, and count them, instead of refusing the data.

    Raises:
        UserError: a missing column, an empty response, or a cell that is no text; the message names the row.
    """
    columns = list(table.column_names) if hasattr(table, "column_names") else sorted({k for row in table for k in row})
    if missing := [column for column in COLUMNS if column not in columns]:
        raise UserError(
            f"{name} has no column {' and no column '.join(map(repr, missing))}; it has {', '.join(columns)}. The input of "
            "an instruction may be an empty text, its output not"
        )
    examples, empty = [], 0
    for number, row in enumerate(table):
        cells = ["" if row.get(column) is None else row[column] for column in COLUMNS]
        if wrong := [column for column, cell in zip(COLUMNS, cells, strict=True) if not isinstance(cell, str)]:
            raise UserError(f"row {number} of {name} has no text in {wrong[0]!r}; write it as a string")
        instruction, text, response = cells
        if response.strip():
            examples.append(Example(instruction, text, response))
        elif skip_empty:
            empty += 1
        else:
            raise UserError(f"row {number} of {name} has an empty 'output'; remove it or skip empty responses")
    if empty:
        log.warning("%d of %d rows of %s have an empty response and are left out", empty, len(examples) + empty, name)
    return examples


def split(examples: Sequence, held_out: int, seed: int = 42) -> tuple[list, list]:
    """Split into (training, validation) as `datasets.Dataset.train_test_split` does (Reassessing: 2,000, seed 42)."""
    import datasets

    if not 0 < held_out < len(examples):
        raise UserError(f"cannot hold out {held_out} of {len(examples)} examples; choose 1..{len(examples) - 1}")
    order = datasets.Dataset.from_dict({"index": list(range(len(examples)))})
    parts = order.train_test_split(test_size=held_out, shuffle=True, seed=seed)
    return tuple([examples[index] for index in parts[part]["index"]] for part in ("train", "test"))


def _alpaca(count: int | None, held_out: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Load Alpaca-cleaned: 51,760 rows, of which 2,000 are held out as the official code draws them.

    They are drawn before rows with an empty response, which it trains on, are left out here. count: so many first
    training rows.
    """
    name = "yahma/alpaca-cleaned"
    parts = zip(
        split(list(corpora.open_dataset(name, None, "train")), held_out, seed), ("training", "held-out"), strict=True
    )
    train, valid = (from_table(rows, name=f"the {part} rows of {name}", skip_empty=True) for rows, part in parts)
    return train[:count], valid


def _toy(count: int | None, held_out: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Return examples from the toy model's splits: function name and parameters -> first paragraph of the docstring.

    Training examples come from its training documents and validation examples from its validation documents; the test
    documents, on which the toy model is measured, give none. seed: the order of the documents, by a hash.
    """
    from common.toy import corpus  # reads every installed package when its cache is cold

    def drawn(split_name: str, limit: int | None) -> list[Example]:
        chosen = [d for d in corpus.split_documents(split_name) if d.kind == "function" and d.parameters]
        chosen.sort(key=lambda document: hashlib.sha256(f"{seed}{document.text}".encode()).digest())
        return [Example(TOY_INSTRUCTION, d.header, d.text.split("\n\n")[0]) for d in chosen[:limit]]

    return drawn("train", count), drawn("valid", held_out)


SOURCES: dict[str, Callable[[int | None, int, int], tuple[list[Example], list[Example]]]] = {
    "alpaca-cleaned": _alpaca,
    "standin": _toy,
}


def load(
    tokenizer, source: str, *, count: int | None = None, held_out: int = 2000, seed: int = 42, cutoff: int = CUTOFF
) -> tuple[list[dict], list[dict]]:
    """Load (training rows, validation rows) of 'alpaca-cleaned' or 'standin'.

    ``count`` training examples at most, ``held_out`` validation examples, and ``cutoff`` tokens in a row at most.

    Raises:
        UserError: an unknown source, or data that are not available.
    """
    if source not in SOURCES:
        raise unknown("instruction data", source, SOURCES)
    train, valid = SOURCES[source](count, held_out, seed)
    return rows(tokenizer, train, cutoff), rows(tokenizer, valid, cutoff)


def blocks(tokenizer, texts: Sequence[str], *, length: int, count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Cut plain text into ``count`` training rows of ``length`` tokens with a loss on every token.

    Documents are shuffled, joined with the end token between them (if the tokenizer has one) and cut. Only as many as
    needed are tokenised. `papers.laco.training.text_blocks` cuts other rows: the end token comes before a document, the
    tokenizer adds no start token, and too little text is accepted. Neither paper says how it cuts text. Results were
    measured with either way, so both stay.

    Raises:
        UserError: too little text.
    """
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    stream: list[int] = []
    tokenizer = open_ended(tokenizer)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for index in order:
        stream += tokenizer(texts[index], verbose=False)["input_ids"] + end
        if len(stream) >= length * count:
            break
    else:
        raise UserError(
            f"{len(stream)} tokens of text do not fill {count} blocks of {length}; use fewer or shorter blocks"
        )
    sequences = [stream[start : start + length] for start in range(0, length * count, length)]
    return [{"input_ids": ids, "labels": list(ids)} for ids in sequences]


def digest(rows: Iterable[Mapping]) -> str:
    """Return the SHA-256 of the rows, which results name as their data."""
    total = hashlib.sha256()
    for row in rows:
        total.update(repr((list(row["input_ids"]), list(row["labels"]))).encode())
    return total.hexdigest()
