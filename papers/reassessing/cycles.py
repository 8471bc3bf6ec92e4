"""Keep the state of an iterative pruning in one file, which replaces the files of every cycle's training.

A cycle's training keeps its trained parameters (head and three layers of LLaMA-3.1-8B in float32: 4.7 GB; sixteen
cycles: 75 GB). ``cycles.safetensors`` holds instead, once for all cycles, the parameters that differ from the original
model, in the model's type, with the removed layers and the trainings' reports. Adapters, which are small and change
every layer, stay in their cycles' folders, and their cycles are repeated from there.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from common.models.decoder import Decoder
from common.models.surgery import remove_layers, untie_embeddings
from common.training.finetuning.state import TRAINED
from common.utils import atomic_files


class Cycles:
    """The saved state of one iterative pruning of `model`, in `folder`."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.path = folder / "cycles.safetensors"
        self._trained: set[int] = set()  # parameters by identity: removing layers changes their names

    def restored(self) -> tuple[list[int], list]:
        """Bring the model to the state of an earlier run; return (removed layers, reports) for `prune_iteratively`."""
        if not self.path.exists():
            return [], []
        with safe_open(self.path, "pt") as file:
            state = json.loads(file.metadata()["state"])
        stored = load_file(self.path)
        remove_layers(self.model, state["removed"])
        if "lm_head.weight" in stored and Decoder(self.model).tied:
            untie_embeddings(self.model)
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in stored.items():
                parameters[name].copy_(value)
        self._trained = {id(parameters[name]) for name in stored}
        return state["removed"], state["reports"]

    def done(self, removed: list[int], reports: list) -> None:
        """Save the model's current state, and delete the files of the cycle's training."""
        cycle = self.folder / f"cycle-{len(reports) - 1}"
        parameters = dict(self.model.named_parameters())
        with safe_open(cycle / TRAINED, "pt") as file:
            names = list(file.keys())
        if not parameters.keys() >= set(names):
            return  # adapters
        self._trained |= {id(parameters[name]) for name in names}
        trained = {name: p.detach().cpu().contiguous() for name, p in parameters.items() if id(p) in self._trained}
        with atomic_files.whole(self.path) as file:
            save_file(trained, file, {"state": json.dumps({"removed": removed, "reports": reports})})
        shutil.rmtree(cycle, ignore_errors=True)
