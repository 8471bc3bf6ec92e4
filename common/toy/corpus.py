"""The toy model's text: English docstrings of the installed standard library and pinned scientific packages.

Files are read and parsed with ``ast``; nothing is imported or run. A document's split is decided by a hash of its
normalised text, so the same text stays in the same split across package versions and machines. Held-out documents that
nearly repeat a training document are dropped, so perplexity and tasks are measured on text the model has not seen.
"""

import ast
import hashlib
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from common.utils import cache
from common.utils.errors import UserError

STANDARD_LIBRARY = "standard-library"
# import name -> (distribution, domain). "tools" is trained on but is no held-out domain of its own.
PACKAGES: dict[str, tuple[str, str]] = {
    **{name: (name, "numerical") for name in ("numpy", "scipy", "pandas", "matplotlib", "sympy", "mpmath", "networkx")},
    "sklearn": ("scikit-learn", "numerical"),
    **{name: (name, "learning") for name in ("torch", "transformers", "datasets", "peft", "accelerate", "evaluate")},
    "lm_eval": ("lm-eval", "learning"),
    "huggingface_hub": ("huggingface_hub", "learning"),
    **{name: (name, "tools") for name in ("nltk", "pydantic", "tornado", "narwhals", "hypothesis", "joblib", "fsspec")},
    "fontTools": ("fonttools", "tools"),
    "IPython": ("ipython", "tools"),
    "PIL": ("pillow", "tools"),
    "prompt_toolkit": ("prompt_toolkit", "tools"),
    "more_itertools": ("more-itertools", "tools"),
    "jinja2": ("Jinja2", "tools"),
    "babel": ("babel", "tools"),
}
DOMAINS = (STANDARD_LIBRARY, "numerical", "learning")
SPLITS = ("train", "valid", "test")

# Percent of the hash space held out; the rest trains.
TEST_PERCENT, VALID_PERCENT = 10, 1
SKIPPED_FOLDERS = {"tests", "test", "testing", "_vendor", "site-packages", "dist-packages", "idlelib", "lib2to3"}
SKIPPED_FOLDERS |= {"turtledemo", "__pycache__", "_inductor"}
MIN_CHARS = 60
MIN_ASCII = 0.97
SHINGLE_WORDS = 8
# A held-out document with more than this share of its shingles in the training split is a near-duplicate.
MAX_SEEN_SHARE = 0.25
FORMAT_VERSION = 3
FILE = "documents.jsonl"
DOMAIN_CHARACTERS = 400_000


@dataclass(frozen=True)
class Document:
    """One docstring: its place, the documented object, and its split."""

    text: str
    package: str
    domain: str
    module: str
    qualname: str
    kind: str  # "module" | "class" | "function"
    split: str
    parameters: tuple[str, ...] = field(default=())

    @property
    def header(self) -> str:
        """``Class.method(first, second)`` for a function, the name for a class, '' for a module."""
        if self.kind != "function":
            return self.qualname
        return f"{self.qualname}({', '.join(p for p in self.parameters if p not in ('self', 'cls'))})"

    @property
    def passage(self) -> str:
        """Header, blank line, docstring: the text that is trained on and measured."""
        return f"{self.header}\n\n{self.text}" if self.header else self.text


def normalise(text: str) -> str:
    """Return a text in lower case with digits as 0 and white space folded, which copies of a docstring have in common."""
    return " ".join(re.sub(r"\d", "0", text.lower()).split())


def split_of(text: str) -> str:
    """Return the split of a docstring, from a hash of its normalised text alone."""
    bucket = int.from_bytes(hashlib.sha256(normalise(text).encode()).digest()[:8], "big") % 100
    if bucket < TEST_PERCENT:
        return "test"
    return "valid" if bucket < TEST_PERCENT + VALID_PERCENT else "train"


def _shingles(text: str) -> set[int]:
    # crc-like integers from blake2b keep the seen-set small and are stable across processes, unlike hash().
    words = normalise(text).split()
    count = max(1, len(words) - SHINGLE_WORDS + 1)
    grams = (" ".join(words[i : i + SHINGLE_WORDS]).encode() for i in range(count))
    return {int.from_bytes(hashlib.blake2b(gram, digest_size=8).digest(), "big") for gram in grams}


def _source_files() -> list[tuple[str, str, str, str]]:
    """Return (path, package, domain, dotted module) of every source file read, in a fixed order."""
    paths = sysconfig.get_paths()
    roots = [(STANDARD_LIBRARY, STANDARD_LIBRARY, Path(paths["stdlib"]), Path(paths["stdlib"]))]
    for package, (_, domain) in PACKAGES.items():
        for base in dict.fromkeys((Path(paths["platlib"]), Path(paths["purelib"]))):
            if (base / package).is_dir():
                roots.append((package, domain, base / package, base))
                break
        else:
            raise UserError(
                f"the toy model's corpus needs the package '{package}', which is not installed; "
                "`make setup` installs every pinned package"
            )
    files = []
    for package, domain, folder, base in roots:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            if SKIPPED_FOLDERS.isdisjoint(parts):
                files.append((str(path), package, domain, ".".join(parts).removesuffix(".__init__")))
    return files


def _documents_of_file(job: tuple[str, str, str, str]) -> list[Document]:
    path, package, domain, module = job
    try:
        source = Path(path).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return list(_walk(tree, (), (package, domain, module)))


def _walk(node: ast.AST, scope: tuple[str, ...], where: tuple[str, str, str]) -> Iterator[Document]:
    names = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
    kind = names.get(type(node))
    if kind is not None:
        inner = scope if kind == "module" else (*scope, node.name)
        text = ast.get_docstring(node)
        if text and len(text) >= MIN_CHARS and sum(c.isascii() for c in text) >= MIN_ASCII * len(text):
            arguments = node.args if kind == "function" else None
            parameters = tuple(a.arg for a in arguments.args + arguments.kwonlyargs) if arguments else ()
            package, domain, module = where
            text = "\n".join(line.rstrip() for line in text.splitlines())
            yield Document(text, package, domain, module, ".".join(inner), kind, split_of(text), parameters)
        scope = inner
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, scope, where)


def _extract() -> list[Document]:
    jobs = _source_files()
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        stream = pool.map(_documents_of_file, jobs, chunksize=32)
        files = list(
            tqdm(stream, total=len(jobs), desc="reading docstrings", unit="file", disable=not sys.stderr.isatty())
        )
    return without_duplicates(document for file in files for document in file)


def without_duplicates(documents: Iterable[Document]) -> list[Document]:
    """Drop exact repeats (the first one stays), then held-out documents that nearly repeat a training document."""
    unique: dict[str, Document] = {}
    for document in documents:
        unique.setdefault(normalise(document.text), document)
    held_out = {key: _shingles(d.text) for key, d in unique.items() if d.split != "train"}
    held_out_shingles = set().union(*held_out.values())
    # Only shingles that some held-out document has can matter: the seen-set stays small.
    trained: set[int] = set()
    for document in unique.values():
        if document.split == "train":
            trained |= _shingles(document.text) & held_out_shingles
    return [
        document
        for key, document in unique.items()
        if document.split == "train" or len(held_out[key] & trained) <= MAX_SEEN_SHARE * len(held_out[key])
    ]


def sources() -> dict[str, str]:
    """Return the installed version of every distribution that the corpus is read from.

    The standard library is "python".
    """
    versions = {name: metadata.version(name) for name, _ in PACKAGES.values()}
    return {"python": ".".join(map(str, sys.version_info[:3])), **versions}


@lru_cache(maxsize=1)
def documents() -> tuple[Document, ...]:
    """Return every document, in a fixed order. Read once per set of installed versions, then from the cache folder.

    Raises:
        UserError: a pinned package is missing, or the cache folder cannot be written or holds a damaged file.
    """
    stamp = {"format": FORMAT_VERSION, "sources": sources()}
    key = hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()[:12]
    folder = cache.once(cache.folder() / f"docstrings-{key}", _write, "the toy model's text")
    try:
        rows = [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]
        return tuple(Document(**row | {"parameters": tuple(row["parameters"])}) for row in rows)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / FILE}: {error}. Delete {folder}, and it is made again") from error


def _write(_: Path, result: Path) -> None:
    lines = "".join(json.dumps(asdict(document)) + "\n" for document in _extract())
    (result / FILE).write_text(lines, encoding="utf-8")


def split_documents(split: str, domain: str | None = None) -> list[Document]:
    """Return the documents of one split, optionally of one domain, in corpus order."""
    return [d for d in documents() if d.split == split and domain in (None, d.domain)]


def mixed(split: str, domain: str | None = None) -> list[Document]:
    """Return the documents of `split_documents` in the order of a hash of their text."""
    return sorted(split_documents(split, domain), key=lambda d: hashlib.sha256(d.text.encode()).digest())


def domain_documents(domain: str, split: str = "test") -> list[Document]:
    """Return documents of one domain and split, about `DOMAIN_CHARACTERS` of them at most.

    They are `mixed`, so that a limited selection has all packages of its domain.
    """
    selected, size = [], 0
    for document in mixed(split, domain):
        selected.append(document)
        size += len(document.passage) + 2
        if size >= DOMAIN_CHARACTERS:
            break
    return selected


def domain_text(domain: str, split: str = "test") -> str:
    """Return the passages of ``domain_documents``, joined by a blank line."""
    return "\n\n".join(document.passage for document in domain_documents(domain, split))


def digest(split: str) -> str:
    """Return the SHA-256 of the passages of one split in corpus order, which results name as their data."""
    total = hashlib.sha256()
    for document in split_documents(split):
        total.update(document.passage.encode() + b"\0")
    return total.hexdigest()
