"""Named text corpora: the source of their documents, the joined text, and its token ids.

Hub corpora are looked up in the local mirror first (`common.models.files.hub`: LAYERLAB_HUB=/dir, folder
/dir/datasets/org/name with the hub's files, or any parquet, JSON or JSON-lines files per split), then on the hub, and
if it cannot be reached in the cache of earlier runs. The toy model's corpora need neither.

Splits are part of a corpus's name ('wikitext2-train'), because 'wikitext2' alone would be ambiguous in a protocol.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from common.calibration import mmlu_questions
from common.console.progress import track
from common.models.files import hub
from common.utils.errors import NoData, UserError, unknown
from common.utils.token_ids import open_ended

SEPARATOR = "\n\n"  # of documents in the joined text
LARGE = 64_000_000  # characters
_ARC = "allenai/ai2_arc"
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".json.gz": "json", ".jsonl.gz": "json"}


@dataclass(frozen=True)
class Corpus:
    """One split of one text corpus.

    Attributes:
        hub_id: Data set on the hub; "" for the toy model's text.
        column: Field that holds a document.
        document: Function from a row to a document, instead of ``column``.
        read: Function that returns all documents, of a data set in several configs.
        after: Number of first rows that are skipped.
        data_file: The only file to read, where naming a split would fetch far more or run a script.
        domain: Domain of the toy model's text; "" for other corpora.
    """

    name: str
    hub_id: str = ""
    config: str | None = None
    split: str = ""
    column: str = "text"
    document: Callable[[Mapping], str] | None = None
    read: Callable[[], Iterable[str]] | None = None
    after: int = 0
    data_file: str | None = None
    revision: str | None = None
    domain: str = ""


def _right_ending(row: Mapping) -> str:
    return f"{row['ctx']} {row['endings'][int(row['label'])]}"


def _answered_questions() -> Iterator[str]:
    """Yield MMLU's examples for prompts, one of each subject in turn, in the form in which its questions are asked."""
    subjects = [subject for category in mmlu_questions.MMLU.values() for subject in category]
    by_subject = [open_dataset(mmlu_questions.HUB_ID, subject, "dev") for subject in subjects]
    for rows in zip(*by_subject, strict=True):
        for subject, row in zip(subjects, rows, strict=True):
            question = mmlu_questions.block(row, "letters", answered=True)
            yield (mmlu_questions.header(subject) + question).rstrip()


def _science_questions(split: str, after: int, answer: str) -> Iterator[str]:
    """Yield ARC's answered questions that have four options, from its two levels in turn until one ends.

    ``after`` is the number of first questions of each level that are skipped. With the ``answer`` 'letters' they have MMLU's
    form, with 'text' a question is followed by its right option alone.
    """
    before = mmlu_questions.header("science") if answer == "letters" else ""
    levels = (open_dataset(_ARC, level, split) for level in ("ARC-Easy", "ARC-Challenge"))
    for rows in islice(zip(*levels, strict=False), after, None):
        for row in rows:
            labels, options = row["choices"]["label"], row["choices"]["text"]
            if len(options) == len(mmlu_questions.LETTERS):
                asked = {"question": row["question"], "choices": options, "answer": labels.index(row["answerKey"])}
                yield (before + mmlu_questions.block(asked, answer, answered=True)).rstrip()


def _corpora() -> Iterator[Corpus]:
    for split in ("train", "validation", "test"):
        yield Corpus(f"wikitext2-{split}", "Salesforce/wikitext", "wikitext-2-raw-v1", split)
        # its repository holds a loading script, which datasets no longer runs: read from the hub's parquet conversion
        yield Corpus(
            f"ptb-{split}",
            "ptb-text-only/ptb_text_only",
            "penn_treebank",
            split,
            column="sentence",
            data_file=f"penn_treebank/{split}/0000.parquet",
            revision="refs/convert/parquet",
        )
    for split, shards in (("train", "01024"), ("validation", "00008")):
        yield Corpus(f"c4-{split}", "allenai/c4", split=split, data_file=f"en/c4-{split}.00000-of-{shards}.json.gz")
    # one sentence a line
    book_file, revision = "plain_text/train/0000.parquet", "refs/convert/parquet"
    yield Corpus("bookcorpus", "bookcorpus/bookcorpus", "plain_text", "train", data_file=book_file, revision=revision)
    english = "20231101.en/train-00000-of-00041.parquet"
    yield Corpus("wikipedia-en", "wikimedia/wikipedia", "20231101.en", "train", data_file=english)
    yield Corpus("wikipedia-zh", "wikimedia/wikipedia", "20231101.zh", "train")
    for split in ("train", "valid", "test"):
        yield Corpus(f"standin-{split}", split=split, domain="all")
    # rare words are <unk>, as the data set's first form has them; the other WikiText-2 corpora are the raw text
    yield Corpus("wikitext2-tokenised-validation", "Salesforce/wikitext", "wikitext-2-v1", "validation")
    # contexts with their right endings; of the items that a task asks, none (training split), or none of the first 500
    yield Corpus("hellaswag-train", "Rowan/hellaswag", split="train", document=_right_ending)
    yield Corpus("hellaswag-after-500", "Rowan/hellaswag", split="validation", document=_right_ending, after=500)
    yield Corpus("mmlu-dev", mmlu_questions.HUB_ID, split="dev", read=_answered_questions)
    for split, name, after in (("train", "train", 0), ("test", "after-500", 500)):
        for kind, answer in (("arc-lettered", "letters"), ("arc", "text")):
            read = partial(_science_questions, split, after, answer)
            yield Corpus(f"{kind}-{name}", _ARC, split=split, read=read, after=after)
    # a part of each domain's training docstrings; and held-out docstrings of one domain each
    yield Corpus("standin-calibration", split="train", domain="calibration")
    for domain in ("standard-library", "numerical", "learning"):
        yield Corpus(domain, split="test", domain=domain)


CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _corpora()}


def get(corpus: str | Corpus) -> Corpus:
    """Return the corpus of this name.

    Raises:
        UserError: there is none; the message names the nearest names.
    """
    if isinstance(corpus, Corpus):
        return corpus
    if corpus not in CORPORA:
        raise unknown("corpus", corpus, CORPORA)
    return CORPORA[corpus]


@lru_cache(maxsize=4)
def _texts(corpus: Corpus) -> tuple[str, ...]:
    if corpus.domain:
        return _toy_texts(corpus)
    if corpus.read is not None:
        return tuple(corpus.read())
    rows = open_dataset(
        corpus.hub_id, corpus.config, corpus.split, data_file=corpus.data_file, revision=corpus.revision
    )
    if corpus.document is not None:
        return tuple(corpus.document(row) for row in rows.select(range(corpus.after, len(rows))))
    if corpus.column not in rows.column_names:
        raise UserError(f"{corpus.hub_id} has no column {corpus.column!r}; it has {', '.join(rows.column_names)}")
    return tuple(rows[corpus.column][corpus.after :])


def _toy_texts(corpus: Corpus) -> tuple[str, ...]:
    from common.toy import corpus as toy  # reads every installed package when its cache is cold

    if corpus.domain == "calibration":
        documents = [d for domain in toy.DOMAINS for d in toy.domain_documents(domain, corpus.split)]
    elif corpus.domain == "all":
        documents = toy.split_documents(corpus.split)
    else:
        return (toy.domain_text(corpus.domain, split=corpus.split),)
    return tuple(document.passage for document in documents)


def texts(corpus: str | Corpus) -> list[str]:
    """Return the documents of a corpus in its order, empty ones included, because they matter in the joined text."""
    return list(_texts(get(corpus)))


def digest(corpus: str | Corpus) -> str:
    """Return the SHA-256 of a corpus's joined text, which results name as their data."""
    corpus = get(corpus)
    total, between = hashlib.sha256(), ""
    for text in _texts(corpus):  # piece by piece: some corpora fill gigabytes
        total.update((between + text).encode())
        between = SEPARATOR
    return total.hexdigest()


def encode(tokenizer, text: str, special: bool = True) -> Tensor:
    """Return the token ids [tokens] of a text of any length, with the ``special`` tokens that the tokenizer puts before it.

    The tokenizer's warning about texts longer than the model's context is suppressed, because callers cut the text up.
    """
    ids = open_ended(tokenizer)(text, verbose=False, add_special_tokens=special)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def joined_ids(tokenizer, corpus: str | Corpus) -> Tensor:
    """Return the token ids [T] of the joined text; special tokens stand at its very ends only.

    A text of more than ``LARGE`` characters is tokenised in parts of whole documents: at once it takes more than a hundred
    times its memory. Tokens where two parts meet may differ.
    """
    texts = _texts(get(corpus))
    if sum(map(len, texts)) <= LARGE:
        return encode(tokenizer, SEPARATOR.join(texts))
    parts = list(_parts(texts))
    steps = track(parts, "tokenising the text", unit="part")
    return torch.cat([encode(tokenizer, part, special=not number) for number, part in enumerate(steps)])


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """Yield pieces of the joined text that end between documents, each about an eighth of ``LARGE``."""
    part, size = [], 0
    for text in texts:
        part.append(text)
        size += len(text)
        if size > LARGE // 8:
            yield SEPARATOR.join(part)
            part, size = [""], 0  # so that the next begins with the separator
    if part != [""]:
        yield SEPARATOR.join(part)


def open_dataset(
    hub_id: str, config: str | None, split: str, *, data_file: str | None = None, revision: str | None = None
):
    """Open a `datasets.Dataset` from the mirror, the hub or its cache; of ``data_file`` alone, if one is given.

    Raises:
        UserError: the data set is not available; the message has one line.
    """
    import datasets
    import huggingface_hub

    with reachable_or_cached(hub_id) as blocked:
        try:
            folder = hub.mirror("datasets", hub_id)
            if folder is not None:
                if data_file and (folder / data_file).exists():
                    return _load_file(folder / data_file, split)
                path, name = mirrored_config(folder, config)
                return datasets.load_dataset(path, name, split=split)
            if data_file:
                # one file, found again in the cache when offline; the rest, and a loading script, are left alone
                local = huggingface_hub.hf_hub_download(hub_id, data_file, repo_type="dataset", revision=revision)
                return _load_file(local, split)
            return datasets.load_dataset(hub_id, config, split=split, revision=revision)
        except Exception as error:  # ConnectionError, httpx2.HTTPError, FileNotFoundError, ValueError: no common base
            raise unavailable(hub_id, error, blocked) from error


def _load_file(file: str | Path, split: str):
    """Read one file by the `datasets` reader for its ending."""
    import datasets

    reader = next(reader for ending, reader in _FORMATS.items() if str(file).endswith(ending))
    return datasets.load_dataset(reader, data_files={split: str(file)}, split=split)


def mirrored_config(folder: Path, config: str | None) -> tuple[str, str | None]:
    """Return the path and config name with which `load_dataset` finds ``config`` in a mirror folder.

    If a dataset card names the config, the folder and the name are returned. Otherwise a subfolder named after the
    config is read, or else the folder itself.
    """
    card = folder / "README.md"
    if config and card.exists() and f"config_name: {config}\n" in card.read_text(encoding="utf-8"):
        return str(folder), config
    return str(folder / config if config and (folder / config).is_dir() else folder), None


@contextmanager
def reachable_or_cached(*hub_ids: str) -> Iterator[str | None]:
    """Keep the hub's client from long retries while the context is open, and hide its bars where no terminal shows them.

    If the hub is out of reach, the client uses its cache or fails at once. Data sets that are all in the mirror need no
    hub, so nothing is probed.

    Yields:
        The reason why the hub cannot be used, or None.
    """
    import datasets
    from huggingface_hub import constants

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    needed = [hub_id for hub_id in hub_ids if hub.mirror("datasets", hub_id) is None]
    blocked = hub.unreachable_because() if needed else None
    if blocked is None:
        yield None
        return
    # The variable HF_HUB_OFFLINE is read when the client is imported; these are what it sets.
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield blocked
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def unavailable(hub_id: str, error: Exception, blocked: str | None = None) -> UserError:
    """Return the one-line error for a data set that could not be loaded.

    It is a `NoData`, unless ``error`` is a message for the user already. ``blocked`` is the reason why the hub cannot
    be used.
    """
    if isinstance(error, UserError):
        return error
    first_line = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    reason = blocked or f"{type(error).__name__}: {first_line}".removesuffix(": ")
    where, remedy = "", hub.remedy(error)
    if blocked is None and hub.mirror("datasets", hub_id):
        where, remedy = " from the mirror", f"complete its copy there, or unset {hub.MIRROR_VARIABLE}"
    return NoData(f"could not fetch dataset {hub_id}{where}: {reason}; {remedy}")
