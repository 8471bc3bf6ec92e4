"""Fine-tuning of (pruned) models on Hugging Face's Trainer and peft: LoRA, QLoRA, partial-layer, full.

    model, report = finetune(model, tokenizer, train, valid, Settings(method="partial", last=3), folder)

Rows are ``{"input_ids": [...], "labels": [...]}`` of equal length, labels -100 where nothing is learnt
(`common.training.instructions` makes them). Defaults are those of Reassessing's official code (fidelity notes, section 4.2).
"""

from common.training.finetuning.methods import check_layers, four_bit
from common.training.finetuning.settings import AT_INTERFACE, METHODS, Settings
from common.training.finetuning.training import finetune

__all__ = ["AT_INTERFACE", "METHODS", "Settings", "check_layers", "finetune", "four_bit"]
