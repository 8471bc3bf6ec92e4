"""The fast Hadamard transform against the dense product, on one thread: `python benchmarks/hadamard.py`."""

import torch

from common.hadamard import hadamard_matrix, hadamard_transform
from common.utils.ratios import Ratio, hand_over, in_turns

ROWS, WIDTHS = 2048, (256, 4096, 5120)


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    for width in WIDTHS:
        x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0))
        matrix = hadamard_matrix(width).to(x)
        seconds, _ = in_turns({"dense": lambda: x @ matrix, "fast": lambda: hadamard_transform(x)})  # noqa: B023
        subject = f"fast Hadamard transform, {ROWS} x {width}"
        share = seconds["fast"] / seconds["dense"]
        hand_over(Ratio(subject, f"{1e3 * seconds['fast']:.1f} ms", share, "dense product"))


if __name__ == "__main__":
    main()
