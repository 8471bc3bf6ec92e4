"""Extract the language model of a multimodal model: ``python -m common.models.language_model FROM TO``."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from common.console.command_line import answering, option, parse
from common.models import admission, checkpoint
from common.utils.errors import UserError, quiet_logging


@torch.no_grad()
def extract(source: Path, out: Path) -> Path:
    """Save the language model of ``source`` as a separate checkpoint, with the tokenizer.

    Raises:
        UserError: there is no language model of a supported architecture, it gives other logits when separated, or ``out``
            holds something.
    """
    if out.is_dir() and any(out.iterdir()):  # it may be a pruned model, which `checkpoint.save` would replace
        raise UserError(f"cannot save to {out}: the directory is not empty. Choose another one, or delete it")
    admission.check_wrapper(source)
    try:
        whole = transformers.AutoModelForMultimodalLM.from_pretrained(
            source, dtype="auto", use_safetensors=True, local_files_only=True
        ).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot load {source}: {admission.explained(error)}") from error
    config = whole.config.get_text_config(decoder=True)
    head = whole.get_output_embeddings()
    config.tie_word_embeddings = head.weight is whole.get_input_embeddings().weight
    alone = transformers.AutoModelForCausalLM.from_config(config, dtype=whole.dtype).eval()
    alone.model.load_state_dict(whole.get_decoder().state_dict())
    alone.lm_head.load_state_dict(head.state_dict())
    alone.generation_config = whole.generation_config
    ids = torch.arange(3, 15)[None] % config.vocab_size
    if not torch.equal(alone(ids, use_cache=False).logits, whole(input_ids=ids, use_cache=False).logits):
        raise UserError(f"the language model in {source} gives other logits on its own; it cannot be taken out")
    return checkpoint.save(alone, checkpoint.load_tokenizer(source), out)


@dataclass(kw_only=True)
class ExtractCommand:
    """Extract the language model from a multimodal model."""

    source: Path = option(help="read the whole model from this directory", positional=True, metavar="MODEL")
    out: Path = option(help="write the language model to this directory", positional=True, metavar="DIR")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = parse(ExtractCommand, arguments, prog="python -m common.models.language_model")
    quiet_logging()
    print(f"saved to {extract(options.source, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
