"""Pack requests that begin alike into one sequence."""

import os.path
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# A request joins the tree of its neighbour when they share at least this part of it: below, a longer packed sequence
# (whose attention is quadratic in its length) costs more than the few shared tokens save.
MIN_SHARED = 0.2
# Longest tree, in tokens, that still takes on another request. Its mask has the square of this many entries.
MAX_TREE = 1024


@dataclass
class Tree:
    """Requests packed into one sequence.

    Attributes:
        tokens: Token id of each node, in the order they are fed; parents come first.
        depths: Depth of each node.
        paths: Request index -> its nodes from the root on, as many as its input has tokens.
    """

    tokens: list[int]
    depths: list[int]
    paths: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def chain(self) -> bool:
        """Return whether the requests are one plain sequence, without a branch."""
        return self.depths[-1] == len(self) - 1

    def attach(self, request: int, sequence: Sequence[int], stem: Sequence[int]) -> list[int]:
        """Add a request whose input is `sequence` and begins along the nodes `stem`; return its path."""
        fresh = range(len(self.tokens), len(self.tokens) + len(sequence) - len(stem))
        self.tokens.extend(sequence[len(stem) :])
        self.depths.extend(range(len(stem), len(sequence)))
        self.paths[request] = [*stem, *fresh]
        return self.paths[request]

    def ancestry(self) -> Tensor:
        """Return [nodes, nodes] bool: row `i` marks the ancestors of node `i` and itself."""
        size, filled = len(self), 0
        allowed, triangle = np.zeros((size, size), bool), np.tri(size, dtype=bool)
        for path in self.paths.values():
            fresh = max(0, path[-1] + 1 - filled)  # the new nodes of a path are its end, and follow all nodes before
            if not fresh:
                continue
            rows, stem = slice(filled, filled + fresh), len(path) - fresh
            if stem:
                allowed[rows, :filled] = allowed[path[stem - 1], :filled]
            allowed[rows, rows] = triangle[:fresh, :fresh]
            filled += fresh
        return torch.from_numpy(allowed)


def grow(sequences: Sequence[Sequence[int]], *, min_shared: float = MIN_SHARED, max_tree: int = MAX_TREE) -> list[Tree]:
    """Pack token sequences into prefix trees, the longest tree first.

    Sorted lexicographically, the longest prefix a sequence shares with any earlier one is the one it shares with its
    neighbour, so one pass over neighbours builds the trees.
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    trees: list[Tree] = []
    before: Sequence[int] = []
    path: list[int] = []
    for index in order:
        sequence = sequences[index]
        shared = len(os.path.commonprefix([before, sequence]))  # of any two lists, not of paths alone
        fits = trees and len(trees[-1]) + len(sequence) - shared <= max_tree
        if not (fits and shared >= max(1, min_shared * len(sequence))) and shared < len(sequence):
            trees.append(Tree([], [], {}))
            shared = 0
        path = trees[-1].attach(index, sequence, path[:shared])
        before = sequence
    return sorted(trees, key=len, reverse=True)
