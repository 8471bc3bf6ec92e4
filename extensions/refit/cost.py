"""Forecast the memory and time of a refit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from common.calibration.layer_inputs import ATTENTION, MLP
from common.calibration.least_squares import WIDE_BYTES
from common.cli import Job
from extensions.refit.method import LARGE, RIDGES, plan_of

BATCH = 8  # samples whose rows are added at once, on a CPU


@dataclass(frozen=True)
class Cost:
    """Cost of a refit.

    Attributes:
        passes: Passes of the calibration tokens through the entire model.
        operations: Operations in float64.
        bytes: Memory of the sums and of solving.
    """

    passes: float
    operations: float
    bytes: int

    @classmethod
    def of(cls, job: Job) -> Cost:
        """Estimate the cost of a tool's run.

        Layers that are still to be selected are assumed to be late ones, which cost most.
        """
        options, config = job.options, job.config
        following = options.following
        removed = job.named_layers
        if removed is None:
            first = max(1, job.layers - 1 - following - job.count)
            removed = list(range(first, first + job.count))
        plan = plan_of(job.layers, sorted(removed), following)
        tokens = options.samples * job.length
        width, heads = config.hidden_size, config.num_attention_heads
        size = getattr(config, "head_dim", None) or width // heads
        inputs = {ATTENTION: heads * size, MLP: config.intermediate_size}
        pairs = getattr(config, "num_key_value_heads", None) or heads
        sublayers = {ATTENTION: 2 * width * size * (heads + pairs), MLP: 3 * width * config.intermediate_size}
        last = {name: features * width for name, features in inputs.items()}
        again = last if options.device == "cpu" and options.stream is None else sublayers
        calls = 0.0
        if plan:
            # the dense residual stream, which the repaired one is until the first interface
            calls = next(k for k in range(max(plan) + 1, job.layers + 1) if k not in removed) * sum(sublayers.values())
            for k in range(min(plan), max(plan) + 1):
                if k not in removed:
                    calls += _repeated(plan.get(k, ()), sublayers, again, k == min(plan) and k < min(removed))
        operations, most = 0.0, 0
        solved = len(RIDGES) if options.held_out else 1
        for name in chain.from_iterable(plan.values()):
            n = inputs[name]
            if tokens < n:
                operations += tokens * n * (tokens + 2 * width) + solved * tokens**2 * (tokens / 3 + 2 * width)
                most = max(most, 8 * (n * (2 * tokens + width) + tokens * (2 * tokens + 3 * width)))
                continue
            alone = name == MLP and n >= LARGE and not options.held_out
            operations += tokens * n * (n + 2 * width) + solved * n**2 * (n / 3 + 2 * width)
            operations += (solved - 1) * 2 * n**2 * width
            rows = min(tokens, BATCH * job.length, WIDE_BYTES // (8 * n))
            most = max(most, 8 * (n * (n + width) * (1 if alone else 4) + rows * (n + 2 * width)))
        return cls(calls / sum(sublayers.values()) / job.layers, operations, most)


def _repeated(names: Sequence[str], sublayers: Mapping[str, int], again: Mapping[str, int], inputs_known: bool) -> int:
    """Return how many weights multiply each token of the repaired residual stream in one layer.

    names: matrices that are refitted. sublayers: weights of attention and MLP. again: weights that run once more after a
    refit. inputs_known: whether the dense pass shows the inputs of the first matrix.
    """
    total = 0
    for name in sublayers:
        if name in names:
            total += (again if inputs_known else sublayers)[name] + again[name]
            inputs_known = False
        elif not inputs_known:
            total += sublayers[name]
    return total
