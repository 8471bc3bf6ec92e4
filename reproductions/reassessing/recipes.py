"""Reassessing's settings as recipes: how layers are chosen, and what trains the model afterwards, by `Subject.size`.

`fields` reads the spelling of the paper's rows: metric, number of layers, and a variant such as ``1:1:8 +LoRA``.
"""

from __future__ import annotations

import re

from common.utils.errors import UserValueError
from reproductions.spec.shared_recipes import SLEB_LINES

# Appendix D and official code: ten lines cropped to 128 tokens, Python's `random` with this seed.
SAMPLES, LENGTH, SEED = 10, 128, 42
# The official code takes the test split for PPL, and so chooses on what it measures; the paper names none.
CORPORA = {
    "paper": {"lines": "bookcorpus", "windows": "wikitext2-validation"},
    "standin": {"lines": "standin-calibration", "windows": "standin-valid"},
}
CORPORA["small"] = CORPORA["paper"]
WINDOWS = {"paper": None, "small": 64, "standin": 32}  # how many of them
# Section 3.3 and official code: the defaults of `common.training.finetuning.Settings`. Of a small size 240 steps in
# place of 1,555, on the stand-in 24, at ten times the rate: in so few steps 1e-5 moves nothing, whatever it trains.
SETTINGS = {
    "paper": {"learning_rate": 1e-5},
    "standin": {
        "learning_rate": 1e-4,
        "epochs": 2,
        "batch": 8,
        "micro_batch": 4,
        "warmup_steps": 2,
        "evaluate_every": 12,
        "save_every": 12,
    },
    "small": {
        "learning_rate": 1e-4,
        "epochs": 2,
        "batch": 8,
        "micro_batch": 8,
        "warmup_steps": 10,
        "evaluate_every": 40,
        "save_every": 40,
    },
}
DATA = {
    "paper": {"source": "alpaca-cleaned"},
    "small": {"source": "alpaca-cleaned", "count": 960, "held_out": 64, "seed": SEED},
    "standin": {"source": "standin", "count": 96, "held_out": 16, "seed": SEED},
}
# Table B on the stand-in: text in place of instructions, as many rows of about their length.
PLAIN_TEXT = {"corpus": "standin-calibration", "length": 128, "count": 96, "held_out": 16, "seed": SEED}
# Iterative pruning: so many rows a cycle, or it would cost many times what one-shot costs.
CYCLE_ROWS = {"small": 240, "standin": 24}
PAPER_ROWS = 49_760  # of Alpaca-cleaned, without those held out
# Suffixes of an arm: another learning rate, and another seed, of the order of rows and of adapters.
FASTER, AGAIN = " at ten times the rate (ours)", " in another order (ours)"
RATES = {"paper": 1e-4, "small": 1e-3, "standin": 1e-3}
GPTQ = {
    "paper": {"bits": 4, "group_size": 128, "texts": 128, "tokens": 2048, "corpus": "c4-train"},
    "standin": {"bits": 4, "group_size": 64, "texts": 32, "tokens": 256, "corpus": "standin-calibration"},
}
GPTQ["small"] = GPTQ["paper"] | {"group_size": 64}  # SmolLM2's 576 and 960 channels are no multiples of 128


def fields(metric: str, count: int, variant: str, size: str) -> dict:
    """Selection, calibration and training of a row: ``HEAD +ARM +GPTQ``, each part optional.

    HEAD: ``one-shot``, a schedule ``1:b:c``, ``N samples``, a share of the data (``0.2``) or ``plain text`` in its place
    (on the stand-in). ARM: see `training`. ``no fine-tuning``, or no arm, trains nothing.
    """
    parts = [part.strip() for part in variant.split("+")]
    head, arm = parts[0].removesuffix(" (ours)"), parts[1] if len(parts) > 1 else ""
    samples = int(head.split()[0]) if re.fullmatch(r"\d+ samples?", head) else SAMPLES
    share = float(head) if re.fullmatch(r"\d\.\d", head) else 1.0
    found = _chosen(metric, count, size, samples)
    tuned = training(arm, size, share) if arm else None
    if head == "plain text":
        tuned["data"] = PLAIN_TEXT
    if re.fullmatch(r"1:\d+:\d+", head):
        tune = {key: tuned[key] for key in ("settings", "data")}
        if size in CYCLE_ROWS:
            tune["data"] = tune["data"] | {"count": CYCLE_ROWS[size]}
        selection = {key: value for key, value in found["selection"].items() if key != "count"}
        return found | {"selection": selection | {"method": "iterative", "schedule": head, "tune": tune}}
    if "GPTQ" in parts[2:]:
        tuned = {"method": "gptq", "after": tuned, **GPTQ[size]}
    return found | ({"training": tuned} if tuned else {})


def _chosen(metric: str, count: int, size: str, samples: int) -> dict:
    """Selection and calibration. SLEB is not among the paper's seven metrics."""
    if metric == "SLEB":
        return {"selection": {"method": "sleb", "count": count, "calibration": SLEB_LINES[size]}}
    name = metric.lower()
    found = {"selection": {"method": "metric", "metric": name, "count": count}}
    if name == "random":
        found["selection"]["seed"] = SEED
    if name in ("taylor", "bi"):
        lines = {"corpus": CORPORA[size]["lines"], "sampler": "line-crops"}
        found["calibration"] = lines | {"count": samples, "length": LENGTH, "seed": SEED}
    if name == "ppl":
        windows = {"corpus": CORPORA[size]["windows"], "sampler": "windows", "length": LENGTH}
        found["calibration"] = windows | ({"count": WINDOWS[size]} if WINDOWS[size] else {})
    return found


def training(arm: str, size: str, share: float = 1.0) -> dict:
    """``LoRA``, ``QLoRA``, ``lm_head``, ``lm_head & last k`` (or ``k at the cut``) or ``full fine-tuning``.

    Perhaps FASTER or AGAIN, perhaps marked (ours).
    share: of the instruction data.
    """
    base = arm.removesuffix(FASTER).removesuffix(AGAIN).removesuffix(" (ours)")
    settings = dict(SETTINGS[size])
    if arm.endswith(FASTER):
        settings["learning_rate"] = RATES[size]
    if arm.endswith(AGAIN):
        settings["seed"] = SEED + 1
    if base in ("LoRA", "QLoRA"):
        settings["method"] = base.lower()
    elif base == "full fine-tuning":
        settings["method"] = "full"
    elif base.startswith("lm_head"):
        layers = re.search(r"\d+", base)
        settings |= {"method": "partial", "last": int(layers[0]) if layers else 0}
        if base.endswith("at the cut"):
            settings["first"] = "cut"
    else:
        raise UserValueError(f"no fine-tuning is called {arm!r}")
    data = dict(DATA[size])
    if share < 1:
        data["count"] = round(share * data.get("count", PAPER_ROWS))
    return {"method": "finetune", "settings": settings, "data": data}
