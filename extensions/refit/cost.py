"""Forecast the memory and time of a refit."""

from __future__ import annotations

from dataclasses import dataclass

from common.calibration.layer_inputs import ATTENTION, GATE, MLP, UP
from common.calibration.least_squares import WIDE_BYTES
from common.cli import Job
from extensions.refit.method import LARGE, plan_of, stages_of

BATCH = 8  # samples whose rows are added at once, on a CPU


@dataclass(frozen=True)
class Cost:
    """passes: of the calibration tokens through the whole model. operations: in float64. bytes: of sums and solving."""

    passes: float
    operations: float
    bytes: int

    @classmethod
    def of(cls, job: Job) -> Cost:
        """Of a tool's run. Layers that are still to be chosen are taken to be late ones; earlier ones end sooner."""
        options, config = job.options, job.config
        following = options.following
        removed = job.given
        if removed is None:
            first = max(1, job.layers - 1 - following - job.count)
            removed = list(range(first, first + job.count))
        stages = stages_of(options.matrices or "both", bool(options.gate_up))
        plan = plan_of(job.layers, sorted(removed), following, stages, options.share or 0.0)
        tokens = options.samples * job.length
        width, heads = config.hidden_size, config.num_attention_heads
        inputs = {
            ATTENTION: heads * (getattr(config, "head_dim", None) or width // heads),
            MLP: config.intermediate_size,
        }
        inputs |= {GATE: width, UP: width}
        outputs = {ATTENTION: width, MLP: width, GATE: config.intermediate_size, UP: config.intermediate_size}
        calls, operations, most = 0, 0.0, 0
        if plan:
            end = next(k for k in range(max(plan) + 1, job.layers + 1) if k not in removed)
            calls = end  # of the dense residual stream, which the repaired one is until the first interface
            calls += sum(1 + len(plan.get(k, ())) for k in range(min(plan), max(plan) + 1) if k not in removed)
        for name in (name for stages in plan.values() for stage in stages for name in stage):
            n, channels = inputs[name], outputs[name]
            alone = name == MLP and n >= LARGE and not options.held_out
            operations += 2 * tokens * n * (n + channels) + n**3 / 3 + (2 if alone else 4) * n**2 * channels
            rows = min(tokens, BATCH * job.length, WIDE_BYTES // (8 * n))
            most = max(most, 8 * (n * (n + channels) * (1 if alone else 4) + rows * (n + 2 * channels)))
        return cls(calls / job.layers, operations, most)
