"""Describe the subject of a table: the paper's own models as printed, the toy model, or any one model (``MODEL=``).

A table declares its rows for a `Subject`. For the paper's own models they are the printed ones; for one model they are the
paper's methods at its shares of layers, so that n follows from the model's depth (``REMOVE=`` says it instead).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from common.models import registry
from common.pruning.recipe import MIXED
from common.records.results import Recipe
from common.toy import WEIGHTS
from common.utils.errors import UserError, plural, unknown
from reproductions.spec.changes import Changes

# What a model is calibrated on while the text that the papers take cannot be had for it (`Subject.text`).
_TEXTS = dict.fromkeys(
    ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", "gemma-3-270m"),
    "wikitext2-tokenised-validation",
)
# What headings say of it.
TEXT_LABEL = "calibrated on WikiText-2's validation split with rare words masked"
# What stands for the papers' instructions where that text does: docstrings of functions, from installed packages.
_INSTRUCTIONS = "standin"
_VALIDATION = "ptb-validation"  # what a training is validated on there
# Texts that can be had for every model, and are meant where a recipe names them.
_AT_HAND = (_VALIDATION, "hellaswag-after-500", "mmlu-dev", "arc-lettered-after-500", "arc-after-500")
# Of a model with more parameters every table reads a part of test sets and texts, those included that ask all of a smaller
# one (`full` of a table in `reproductions.spec.registry`): a row of whole test sets takes two cores half an
# hour with 135 million.
_MOST_READ_WHOLE = 300_000_000
# The real models whose records are published: shown first where no model is named.
PUBLISHED_MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
# What sentences and headings call a subject; its label also says which weights it has.
HEADS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct",
    "qwen2.5-coder-0.5b-instruct": "Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder-1.5b-instruct": "Qwen2.5-Coder-1.5B-Instruct",
    "standin": "the toy model",
}


@dataclass(frozen=True)
class Subject:
    """The model or models that a table is made for.

    Attributes:
        profile: Texts, tasks and hyperparameters: 'standin' or 'paper'.
        label: Label for people.
        model: Name for `common.models.load`; None: the paper's models, as printed.
        layers: N.
        remove: Numbers of layers to remove, instead of the paper's shares.
        weights: Digest or revision of the weights.
        dtype: Type of weights and computation.
        text: Corpus that replaces all calibration texts (docstrings then replace instructions), None for the papers'
            own.
        paper_budget: The papers' sizes of test sets, texts and calibration for another model.
        full_test_sets: Only their test sets and texts.
        large: Every table reads a part of them (`reproductions.spec.subsets`) until all rows have answered the whole.
        changes: A user's changes of the rows' recipes.
    """

    profile: str
    model: str | None = None
    label: str = ""
    layers: int = 0
    weights: str | None = None
    dtype: str = "float32"
    remove: tuple[int, ...] = ()
    text: str | None = None
    paper_budget: bool = False
    full_test_sets: bool = False
    large: bool = False
    changes: Changes = Changes()

    @property
    def printed(self) -> bool:
        """Return whether these are the paper's models, with the rows that it prints."""
        return self.model is None

    @property
    def toy(self) -> bool:
        """Return whether this is the toy model, for which tables choose separate numbers."""
        return self.profile == "standin"

    @property
    def small(self) -> bool:
        """Return whether tables read a part of the papers' data (`reproductions.spec.subsets`): unless ``paper_budget``."""
        return not (self.printed or self.toy or self.paper_budget)

    @property
    def size(self) -> str:
        """Return the source of its rows' hyperparameters: 'small', or its profile."""
        return "small" if self.small else self.profile

    @property
    def group(self) -> str:
        """Return the id that the rows of its model share (`registry.Row.group`)."""
        return self.model or ""

    @property
    def phrase(self) -> str:
        """Return the name of the models within a sentence."""
        return "the paper's models" if self.printed else "the toy model" if self.toy else self.label

    @property
    def name(self) -> str:
        """Name for file names and JSON: the model's, or ``paper``."""
        return self.model or "paper"

    def counts(self, *shares: tuple[int, int], toy: Sequence[int] | int) -> tuple[int, ...]:
        """Return the numbers of layers to remove.

        These are ``remove``, if it is given; on the toy model ``toy``; otherwise the paper's shares n/N of this
        model's layers, rounded, each once.

        Raises:
            UserError: the model has too few layers for one of them.
        """
        if self.remove:
            counts = self.remove
        elif self.toy:
            counts = (toy,) if isinstance(toy, int) else tuple(toy)
        else:
            counts = tuple(dict.fromkeys(round(n * self.layers / of) for n, of in shares))
        for count in counts:
            if not 0 < count < self.layers - 1:
                explanation = ", for two have to stay"
                if count < 1:
                    explanation = "; a table's share of so few rounds to none: use a deeper model"
                if count < 1 and self.remove:
                    explanation = "; at least one has to be removed"
                raise UserError(
                    f"{self.label} has {plural(self.layers, 'layer')}: {count} of them cannot be removed{explanation}"
                )
        return counts


TOY = Subject("standin", "standin", "toy model", 16)
# The type of LinearPatch's and Prune&Comp's codes; LaCo's and Reassessing's load float32, twice the memory.
PAPER = Subject("paper", dtype="float16")
PROFILES = {"standin": TOY, "paper": PAPER}  # whom a profile's name alone stands for


def of_profile(name: str) -> Subject:
    """Return the subject that a profile's name stands for.

    Raises:
        UserError: an unknown profile.
    """
    if name not in PROFILES:
        raise unknown("profile", name, ["toy", "paper"])
    return PROFILES[name]


def of_model(name: str, remove: Sequence[int] = (), profile: str | None = None) -> Subject:
    """Return the subject of a model by registry name, hub id or directory. Reads its config, not its weights.

    ``profile`` None: the toy model's for the toy model, the papers' for any other.

    Raises:
        UserError: the model is not available, its architecture is not supported, or it cannot be measured in the
            profile.
    """
    name = TOY.model if name == registry.TOY else name
    if name == TOY.model and profile in (None, "standin"):
        return replace(TOY, remove=tuple(remove))
    if "standin" in (name, profile):
        raise UserError(
            f"model {name!r} cannot be measured in the profile {profile!r}: the toy model's tasks are the toy model's alone"
        )
    spec = registry.find(name)
    if spec is None:
        from common.models import loading  # loads torch: registered models do without

        model = loading.describe(name)
    elif spec.refused:
        raise UserError(f"{spec.name} cannot be loaded here: {spec.refused}")
    else:
        model = spec
    return Subject(
        profile="paper",
        model=model.name,
        label=model.title,
        layers=model.layers,
        weights=model.weights,
        dtype="bfloat16",
        remove=tuple(remove),
        text=_TEXTS.get(model.name),
        large=(spec.facts["params"] if spec else model.parameters) > _MOST_READ_WHOLE,
    )


@lru_cache(maxsize=1)
def toy_digest() -> str:
    """Return the first sixteen hexadecimal digits of the SHA-256 of the toy model's weights, which identify the model."""
    return hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).hexdigest()[:16]


def recipe(model: str, subject: Subject, limit: int | None = None, **fields) -> Recipe:
    """Return a recipe of a table's row, with its subject's weights, type and calibration text."""
    if subject.toy:
        weights = toy_digest()
    elif model == subject.model:
        weights = subject.weights
    else:
        weights = registry.get(model).weights
    if subject.text:
        fields = {key: _on_text(value, subject.text) for key, value in fields.items()}
    return Recipe(model=model, profile=subject.profile, weights=weights, limit=limit, dtype=subject.dtype, **fields)


def _on_text(value, text: str):
    """Return a part of a recipe with `text` in the place of corpora, and docstrings in the place of instructions."""
    if not isinstance(value, Mapping):
        return value
    parts = (value.get("corpus") or "").split(MIXED)
    corpus = MIXED.join(part if part in _AT_HAND else text for part in parts)
    replacements = {"corpus": corpus, "validation": _VALIDATION, "source": _INSTRUCTIONS}
    return {key: replacements[key] if key in replacements else _on_text(part, text) for key, part in value.items()}
