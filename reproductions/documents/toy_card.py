"""Measure the trained toy model and write its model card: ``python -m reproductions.documents.toy_card``.

Writes ``facts.json`` (every number of the card) and the tables of ``README.md`` beside the weights; its sentences are
written by hand. ``python -m reproductions.documents.published_figures`` draws the card's figures from these files.
"""

import json
import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from common.calibration import collect
from common.console.command_line import answering, parse
from common.console.text_tables import markdown
from common.hooks import capture, scale_stream
from common.models import loading
from common.models.decoder import Decoder
from common.pruning.selection import best_window
from common.toy import WEIGHTS, corpus
from reproductions.documents import readme

LICENCES = {
    "PSF-2.0": ("python",),
    "BSD-3-Clause": (
        *("numpy", "scipy", "pandas", "scikit-learn", "sympy", "mpmath", "networkx", "torch"),
        *("joblib", "fsspec", "Jinja2", "babel", "ipython", "prompt_toolkit"),
    ),
    "Apache-2.0": ["transformers", "datasets", "peft", "accelerate", "evaluate", "huggingface_hub", "nltk", "tornado"],
    "MIT": ["lm-eval", "pydantic", "narwhals", "fonttools", "more-itertools"],
    "MIT-CMU": ("pillow",),
    "MPL-2.0": ("hypothesis",),
    "Matplotlib licence (PSF-based)": ("matplotlib",),
}
WINDOW, SAMPLES = 256, 24
LARGEST = 6  # removed layers, at most
ALPHAS = [round(0.8 + 0.1 * i, 1) for i in range(11)]


def domain_windows(tokenizer, domain: str, split: str = "test", count: int | None = None) -> Tensor:
    """Return held-out token ids of a domain, ``[n, WINDOW]``, without the last tokens that fill no sequence."""
    ids = tokenizer(corpus.domain_text(domain, split), return_tensors="pt", verbose=False).input_ids[0]
    return ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)[:count]


@torch.no_grad()
def loss(decoder: Decoder, windows: Tensor, layers: list[int] | None = None) -> float:
    """Compute the mean next-token loss in nats of the model with ``layers`` alone (default: all) on ``[n, tokens]`` ids."""
    layers = list(range(decoder.num_layers)) if layers is None else layers
    total = 0.0
    for ids in windows.split(16):
        logits = decoder.logits(decoder.run(decoder.embed_tokens(ids), layers=layers))[:, :-1]
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item() * len(ids)
    return total / len(windows)


def magnitudes(decoder: Decoder, windows: Tensor) -> list[dict[str, float]]:
    """Measure, at each boundary, the mean |X| and the largest token's norm over the median one.

    The latter shows massive tokens.
    """
    means: dict[int, list[float]] = {}
    peaks: dict[int, list[float]] = {}

    def note(boundary: int, hidden: Tensor) -> None:
        norms = hidden.norm(dim=-1).flatten()
        means.setdefault(boundary, []).append(hidden.abs().mean().item())
        peaks.setdefault(boundary, []).append((norms.max() / norms.median()).item())

    with torch.no_grad(), capture(decoder.model, range(decoder.num_layers + 1), note):
        for ids in windows.split(16):
            decoder.model(input_ids=ids, use_cache=False)
    return [{"mean": sum(means[b]) / len(means[b]), "peak": max(peaks[b])} for b in sorted(means)]


def pruning_curve(decoder: Decoder, calibration: Tensor, windows: Tensor) -> list[dict]:
    """Measure perplexities after removing the block of highest cosine and the block of lowest loss, of 1..LARGEST layers."""
    n_layers = decoder.num_layers
    pairs = [(s, s + n) for n in range(1, LARGEST + 1) for s in range(n_layers - n + 1)]
    statistics = collect(decoder, calibration, span=LARGEST, pairs=pairs, rotate=False)
    rows = []
    for count in tqdm(range(1, LARGEST + 1), desc="pruning curve", disable=not sys.stderr.isatty()):
        start, stop = best_window(statistics, count, "token", exclude_ends=False)
        keep = {s: [i for i in range(n_layers) if not s <= i < s + count] for s in range(n_layers - count + 1)}
        trials = {s: math.exp(loss(decoder, windows[:12], layers)) for s, layers in keep.items()}
        best = min(trials, key=trials.get)
        row = {"removed": count, "window": [start, stop], "cosine": statistics.cosine("token", start, stop)}
        row |= {"perplexity": math.exp(loss(decoder, windows, keep[start])), "best_window": [best, best + count]}
        row |= {"best_perplexity": math.exp(loss(decoder, windows, keep[best]))}
        row["predicted_alpha"] = statistics.ratio(start, stop, "ratio-of-means", rotated=False).mean().item()
        rows.append(row)
    return rows


def alpha_sweep(decoder: Decoder, windows: Tensor, cut: tuple[int, int]) -> list[dict[str, float]]:
    """Measure perplexity without layers ``[start, stop)``, with the residual stream there multiplied by alpha."""
    start, stop = cut
    kept = [i for i in range(decoder.num_layers) if not start <= i < stop]
    rows = []
    for alpha in ALPHAS:
        with scale_stream(decoder.model, stop, alpha):
            rows.append({"alpha": alpha, "perplexity": math.exp(loss(decoder, windows, kept))})
    return rows


def measure() -> dict:
    """Measure every number of the card."""
    model, tokenizer = loading.load("standin")
    decoder = Decoder(model)
    facts: dict = {"parameters": sum(p.numel() for p in model.parameters()), "domains": {}}
    for domain in corpus.DOMAINS:
        windows = domain_windows(tokenizer, domain, count=128)
        facts["domains"][domain] = {"loss": loss(decoder, windows), "tokens": windows.numel()}
    text = torch.cat([domain_windows(tokenizer, d, count=SAMPLES // 2) for d in corpus.DOMAINS])
    calibration = torch.cat([domain_windows(tokenizer, d, "train", SAMPLES // 2) for d in corpus.DOMAINS])
    facts["dense_perplexity"] = math.exp(loss(decoder, text))
    facts["magnitudes"] = magnitudes(decoder, text)
    facts["pruning_curve"] = pruning_curve(decoder, calibration, text)
    cuts = [row for row in facts["pruning_curve"] if row["removed"] in (3, 4, 5)]
    facts["alpha_sweeps"] = [
        {
            "window": row["window"],
            "predicted": row["predicted_alpha"],
            "sweep": alpha_sweep(decoder, text, row["window"]),
        }
        for row in tqdm(cuts, desc="alpha sweeps", disable=not sys.stderr.isatty())
    ]
    return facts


def parts(facts: dict, training: dict) -> dict[str, str]:
    """Return the tables of the model card, by the names of its marked parts."""
    sources = training["sources"]
    licences = [[name, ", ".join(f"{p} {sources[p]}" for p in who)] for name, who in LICENCES.items()]
    domains = [[d, f"{v['loss']:.3f}", f"{math.exp(v['loss']):.1f}", v["tokens"]] for d, v in facts["domains"].items()]
    perplexity = f"Perplexity ({WINDOW}-token sequences)"
    return {
        "licences": markdown(["Licence", "Sources"], licences, "l"),
        "domains": markdown(["Domain", "Loss (nats/token)", perplexity, "Tokens"], domains, "l"),
    }


@dataclass(kw_only=True)
class CardCommand:
    """Measure the trained toy model and write its model card."""


@answering
def main(arguments: list[str] | None = None) -> int:
    """Measure, then write ``facts.json`` and the tables of ``README.md``; return the exit status."""
    parse(CardCommand, arguments, prog="python -m reproductions.documents.toy_card")
    torch.set_flush_denormal(True)
    facts = measure()
    (WEIGHTS / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    training = json.loads((WEIGHTS / "training.json").read_text())
    card = WEIGHTS / "README.md"
    card.write_text(readme.render(card.read_text(), parts(facts, training)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
