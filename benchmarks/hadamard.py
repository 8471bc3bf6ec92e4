"""The fast Hadamard transform against the dense product, same input, same run: `python benchmarks/hadamard.py`.

Prints milliseconds (medians, the two taking turns), their ratio, and the largest difference; `--json` prints the rows for
machines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from common.console.command_line import option, parse
from common.hadamard import hadamard_matrix, hadamard_transform
from common.utils.ratios import Ratio, hand_over, in_turns

WIDTHS = (256, 4096, 5120)


def measure(width: int, rows: int, repeats: int, device: str) -> dict:
    """Return one row: dense and fast milliseconds for `x` [rows, width], float32."""
    x = torch.randn(rows, width, device=device, generator=torch.Generator(device).manual_seed(0))
    matrix = hadamard_matrix(width).to(x)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ways = {"dense": lambda: (x @ matrix, wait()), "fast": lambda: (hadamard_transform(x), wait())}
    seconds, returned = in_turns(ways, repeats)
    dense, fast = seconds["dense"], seconds["fast"]
    return {
        "C": width,
        "rows": rows,
        "dense_ms": round(1e3 * dense, 3),
        "fast_ms": round(1e3 * fast, 3),
        "speedup": round(dense / fast, 2),
        "largest_difference": float((returned["dense"][0] - returned["fast"][0]).abs().max()),
    }


@dataclass(kw_only=True)
class Options:
    """The command line."""

    rows: int = option(2048, "tokens to transform")
    repeats: int = 3
    threads: int = 1
    device: str = "cpu"
    json: bool = False


def main() -> None:
    """Print the ratios."""
    arguments = parse(Options, description=__doc__.splitlines()[0])
    torch.set_num_threads(arguments.threads)
    rows = [measure(width, arguments.rows, arguments.repeats, arguments.device) for width in WIDTHS]
    for row in rows:
        what = f"fast Hadamard transform, {row['rows']} x {row['C']}"
        hand_over(Ratio(what, f"{row['fast_ms']:.1f} ms", row["fast_ms"] / row["dense_ms"], "dense product"))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'C':>6} {'dense ms':>10} {'fast ms':>10} {'speed-up':>9} {'difference':>11}")
    for row in rows:
        print(
            f"{row['C']:>6} {row['dense_ms']:>10.2f} {row['fast_ms']:>10.2f} {row['speedup']:>8.1f}x "
            f"{row['largest_difference']:>11.1e}"
        )


if __name__ == "__main__":
    main()
