"""Solve symmetric systems of equations in place, block by block, for matrices that fit into memory only once.

LLaMA-2-7B's down_proj reads 11,008 features: H'H takes 969 MB in float64, and `torch.linalg.cholesky` makes two more
copies of it.
"""

import torch
from torch import Tensor

BLOCK = 1024  # rows at a time; what is needed beside the matrix is a panel of as many columns


def factor_(matrix: Tensor) -> bool:
    """Replace the lower triangle of ``matrix`` [n, n] by L of L L' = matrix; return whether it is positive definite.

    The part above the diagonal blocks is unchanged. A matrix that is not positive definite is destroyed.
    """
    for start in range(0, len(matrix), BLOCK):
        part, after = slice(start, start + BLOCK), slice(start + BLOCK, len(matrix))
        block, failed = torch.linalg.cholesky_ex(matrix[part, part])
        if failed:
            return False
        matrix[part, part] = block
        panel = torch.linalg.solve_triangular(block.T, matrix[after, part], upper=True, left=False)
        matrix[after, part] = panel
        for column in range(start + BLOCK, len(matrix), BLOCK):  # the lower triangle of what is left, in blocks
            rows, columns = panel[column - start - BLOCK :], panel[column - start - BLOCK :][:BLOCK]
            matrix[column:, column : column + BLOCK].addmm_(rows, columns.T, alpha=-1)
    return True


def solve_(factor: Tensor, right: Tensor) -> float:
    """Replace ``right`` [n, columns] by the D of L L' D = right, with L from `factor_`; return |L^-1 right|^2."""
    starts = range(0, len(factor), BLOCK)
    for start in starts:
        part = slice(start, start + BLOCK)
        rows = right[part]
        if start:
            rows.addmm_(factor[part, :start], right[:start], alpha=-1)
        rows.copy_(torch.linalg.solve_triangular(factor[part, part], rows, upper=False))
    squares = torch.linalg.vector_norm(right).item() ** 2
    for start in reversed(starts):
        part, after = slice(start, start + BLOCK), slice(start + BLOCK, len(factor))
        rows = right[part]
        if start + BLOCK < len(factor):
            rows.addmm_(factor[after, part].T, right[after], alpha=-1)
        rows.copy_(torch.linalg.solve_triangular(factor[part, part].T, rows, upper=True))
    return squares
