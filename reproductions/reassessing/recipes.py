"""Reassessing's settings as recipes: how layers are chosen, and what trains the model afterwards, by `Subject.size`."""

from papers.reassessing.options import LENGTH, METRICS, SAMPLES, SEED
from reproductions.reassessing.specs import Arm, ArmSpec
from reproductions.spec.shared_recipes import SLEB_LINES

# The official code takes the test split for PPL, and so chooses on what it measures; the paper names none.
CORPORA = {
    "paper": {"lines": "bookcorpus", "windows": "wikitext2-validation"},
    "standin": {"lines": "standin-calibration", "windows": "standin-valid"},
}
CORPORA["small"] = CORPORA["paper"]
WINDOWS = {"paper": None, "small": 64, "standin": 32}  # how many of them
# Section 3.3 and official code: the defaults of `common.training.finetuning.Settings`. Of a small size 240 steps in
# place of 1,555, on the toy model 24, at ten times the rate: in so few steps 1e-5 moves nothing, whatever it trains.
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
# Table B on the toy model: text in place of instructions, as many rows of about their length.
PLAIN_TEXT = {"corpus": "standin-calibration", "length": 128, "count": 96, "held_out": 16, "seed": SEED}
# Iterative pruning: so many rows a cycle, or it would cost many times what one-shot costs.
CYCLE_ROWS = {"small": 240, "standin": 24}
PAPER_ROWS = 49_760  # of Alpaca-cleaned, without those held out
# Of `specs.Arm.faster`; `again` has another seed, of the order of rows and of adapters.
RATES = {"paper": 1e-4, "small": 1e-3, "standin": 1e-3}
GPTQ = {
    "paper": {"bits": 4, "group_size": 128, "texts": 128, "tokens": 2048, "corpus": "c4-train"},
    "standin": {"bits": 4, "group_size": 64, "texts": 32, "tokens": 256, "corpus": "standin-calibration"},
}
GPTQ["small"] = GPTQ["paper"] | {"group_size": 64}  # SmolLM2's 576 and 960 channels are no multiples of 128


def fields(spec: ArmSpec, count: int, size: str) -> dict:
    """Return selection, calibration and training of a row that removes ``count`` layers."""
    steps = _chosen(spec.metric, count, size, spec.samples or SAMPLES)
    fine_tuning = training(spec.arm, size, spec.share or 1.0) if spec.arm else None
    if spec.plain_text:
        fine_tuning["data"] = PLAIN_TEXT
    if spec.schedule:
        tune = {key: fine_tuning[key] for key in ("settings", "data")}
        if size in CYCLE_ROWS:
            tune["data"] = tune["data"] | {"count": CYCLE_ROWS[size]}
        selection = {key: value for key, value in steps["selection"].items() if key != "count"}
        schedule = f"1:{spec.schedule[0]}:{spec.schedule[1]}"
        return steps | {"selection": selection | {"method": "iterative", "schedule": schedule, "tune": tune}}
    if spec.quantized:
        fine_tuning = {"method": "gptq", "after": fine_tuning, **GPTQ[size]}
    return steps | ({"training": fine_tuning} if fine_tuning else {})


def _chosen(metric: str, count: int, size: str, samples: int) -> dict:
    """Return selection and calibration. SLEB is not among the paper's seven metrics."""
    if metric == "SLEB":
        return {"selection": {"method": "sleb", "count": count, "calibration": SLEB_LINES[size]}}
    name = metric.lower()
    steps = {"selection": {"method": "metric", "metric": name, "count": count}}
    if name == "random":
        steps["selection"]["seed"] = SEED
    if METRICS[name] == "line-crops":
        lines = {"corpus": CORPORA[size]["lines"], "sampler": "line-crops"}
        steps["calibration"] = lines | {"count": samples, "length": LENGTH, "seed": SEED}
    if METRICS[name] == "windows":
        sequences = {"corpus": CORPORA[size]["windows"], "sampler": "windows", "length": LENGTH}
        steps["calibration"] = sequences | ({"count": WINDOWS[size]} if WINDOWS[size] else {})
    return steps


def training(arm: Arm, size: str, share: float = 1.0) -> dict:
    """Return the training of a way to fine-tune; share: of the instruction data."""
    settings = dict(SETTINGS[size])
    if arm.faster:
        settings["learning_rate"] = RATES[size]
    if arm.again:
        settings["seed"] = SEED + 1
    settings["method"] = arm.kind
    if arm.kind == "partial":
        settings["last"] = arm.last
        if arm.at_interface:
            settings["first"] = "cut"
    data = dict(DATA[size])
    if share < 1:
        data["count"] = round(share * data.get("count", PAPER_ROWS))
    return {"method": "finetune", "settings": settings, "data": data}
