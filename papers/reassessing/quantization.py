"""Joint pruning and quantization (Reassessing, section 5, Table 7): GPTQ at 4 bits on the pruned, fine-tuned model.

Carried out by gptqmodel through transformers. It is an optional extra (`make setup-quantization`): its metadata asks for
another torch than this repository's, so it is installed without its own requirements. The linear layers inside the decoder
layers are quantized, embedding and head stay. The paper names no group size, no calibration text and no order.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from common.models import checkpoint
from common.models.architectures import layer_list
from common.utils.errors import UserError, UserValueError, errors_only, first_line

PACKAGES = ("gptqmodel", "optimum")


def require() -> None:
    """Refuse to start without the optional packages.

    Raises:
        UserError: a package is missing; the message says how to install it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"GPTQ needs {' and '.join(missing)}, which is not installed; run `make setup-quantization`")


def quantize(
    model: nn.Module, tokenizer, texts: Sequence[str], *, bits: int = 4, group_size: int = 128, tokens: int = 2048
) -> nn.Module:
    """Return a copy of a plain model with its matrices quantized by GPTQ, layer by layer.

    The copy runs and saves like any Hugging Face model; `model` is not changed.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        texts: Calibration texts.
        bits: Bits per weight.
        group_size: Number of columns that share a scale; it must divide the matrices' inputs.
        tokens: Number of first tokens of each text that are read.

    Raises:
        UserError: missing packages, a group size that does not fit, or a model that gptqmodel cannot quantize.
    """
    require()
    inputs = {m.in_features for m in layer_list(model).modules() if isinstance(m, nn.Linear)}
    wrong = sorted(width for width in inputs if width % group_size)
    if group_size < 1 or wrong:
        raise UserValueError(f"a group of {group_size} columns does not divide matrices of {wrong}; use a divisor")
    import transformers

    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it fails on one or two cores otherwise
    config = transformers.GPTQConfig(
        bits=bits, group_size=group_size, dataset=texts, tokenizer=tokenizer, desc_act=False, model_seqlen=tokens
    )
    with tempfile.TemporaryDirectory(prefix="gptq-") as folder, _quiet():
        checkpoint.save(model, tokenizer, folder)
        try:
            quantized = transformers.AutoModelForCausalLM.from_pretrained(
                folder, quantization_config=config, device_map=str(model.device), dtype=model.dtype
            ).eval()
            # the matrices are laid out for their kernel in the first pass, which breaks where several threads make it at once
            with torch.inference_mode():
                quantized(torch.zeros(1, 1, dtype=torch.long, device=quantized.device), use_cache=False)
        except (ValueError, RuntimeError, NotImplementedError, ImportError, KeyError) as error:
            raise UserError(f"GPTQ failed: {first_line(error)}") from error
    return quantized


@contextlib.contextmanager
def _quiet():
    """Gptqmodel prints banners and progress to standard output, and optimum a line per matrix; results go there alone."""
    with errors_only("optimum"), contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.random.fork_rng():
            yield
