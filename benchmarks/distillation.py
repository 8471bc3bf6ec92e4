"""Distilling a patch beside a shared or a stored teacher, against two separate models: `python benchmarks/distillation.py`.

Each way runs in a process of its own on the same batches, in turns: seconds of a step in the fastest repeat, and peak memory
above the loaded library. The losses must agree to rounding.
"""

import copy
import json
import resource
import subprocess
import sys
import tempfile
import time

import torch

from common.hooks import attach_patch
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.training.distillation import Distillation, frozen
from common.training.teacher_store import TeacherStore
from common.utils.ratios import Ratio, hand_over
from papers.linearpatch import LinearPatch

K, RATE = 100, 1e-3
STEPS, WARM, TOKENS, REPEATS, BLOCK = 8, 2, 256, 3, (6, 11)
WAYS = ("separate", "shared", "stored")
BASELINE = "two separate models"


def separate(model, patch, sequences):
    """Return the loss of the naive way: a pruned and patched second model; every step runs both from their first layer."""
    student = copy.deepcopy(model).requires_grad_(False)
    remove_layers(student, range(*BLOCK))
    attach_patch(student, BLOCK[0], patch, "linearpatch")

    def loss(step: int) -> torch.Tensor:
        ids = sequences[step : step + 1]
        with torch.no_grad():
            values, indices = model(input_ids=ids, use_cache=False).logits.topk(K, -1)
        student_values = student(input_ids=ids, use_cache=False).logits.gather(-1, indices)
        return (
            torch.nn.functional.kl_div(student_values.log_softmax(-1), values.softmax(-1), reduction="sum")
            / ids.numel()
        )

    return loss


def work(way: str) -> dict:
    """Measure one way, in this process."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    library_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, _ = loading.load("standin")
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(1, model.config.vocab_size, (STEPS + WARM, TOKENS), generator=generator)
    patch = LinearPatch(torch.linspace(1.2, 1.6, model.config.hidden_size)).requires_grad_(True)
    store, fill = None, 0.0
    with tempfile.TemporaryDirectory() as folder:
        if way == "stored":
            store = TeacherStore(folder, Decoder(model), sequences, K)
            started = time.perf_counter()
            store.fill()
            fill = (time.perf_counter() - started) / len(sequences)
        if way == "separate":
            loss = separate(model, patch, sequences)
        else:
            task = Distillation(Decoder(model), {BLOCK: patch}, sequences, k=K, store=store)

            def loss(step: int) -> torch.Tensor:
                return task.loss([step])

        optimizer, losses, times = torch.optim.AdamW([patch.weight], lr=RATE), [], []
        with frozen(model):
            for step in range(STEPS + WARM):
                started = time.perf_counter()
                value = loss(step)
                value.backward()
                optimizer.step()
                optimizer.zero_grad()
                times.append(time.perf_counter() - started)
                losses.append(value.item())
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - library_kib) / 2**10
    return {"seconds": sum(times[WARM:]) / STEPS, "mib": mib, "losses": losses, "fill": fill}


def main() -> None:
    """Print the ratios."""
    if len(sys.argv) > 1:
        print(json.dumps(work(sys.argv[1])))
        return
    torch.set_num_threads(1)  # what is handed over says on how many
    fastest: dict[str, dict] = {}
    for _ in range(REPEATS):
        for way in WAYS:
            process = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True, text=True)
            result = json.loads(process.stdout.splitlines()[-1])
            fastest[way] = min(fastest.get(way, result), result, key=lambda result: result["seconds"])
    plain = fastest.pop("separate")
    for way, result in fastest.items():
        apart = max(abs(a - b) / abs(b) for a, b in zip(result["losses"], plain["losses"]))
        if apart > 1e-3:
            raise SystemExit(f"the losses of the {way} teacher differ by {apart:.1e} of the separate models'")
        subject = f"distilling a patch, {way} teacher"
        measured = f"{1 / result['seconds']:.2f} steps/s, {result['mib']:.0f} MiB"
        hand_over(
            Ratio(f"{subject}: speed of a step", measured, plain["seconds"] / result["seconds"], BASELINE),
            Ratio(f"{subject}: memory", measured, result["mib"] / plain["mib"], BASELINE),
        )
    first = result["seconds"] + result["fill"]
    hand_over(Ratio(f"{subject}, filled first: speed", f"{1 / first:.2f} steps/s", plain["seconds"] / first, BASELINE))


if __name__ == "__main__":
    main()
