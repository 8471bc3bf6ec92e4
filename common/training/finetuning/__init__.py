"""Fine-tuning of (pruned) models on Hugging Face's Trainer and peft: LoRA, QLoRA, partial-layer, full.

    model, report = finetune(model, tokenizer, train, valid, Settings(method="partial", last=3), folder)

Rows are ``{"input_ids": [...], "labels": [...]}`` of equal length, labels -100 where nothing is learnt
(`common.training.instructions` makes them). Defaults are those of Reassessing's official code (fidelity notes, section 4.2).
"""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.training.finetuning.methods": ("check_adapters", "check_tuned_layers", "four_bit"),
        "common.training.finetuning.settings": ("AT_INTERFACE", "METHODS", "Settings"),
        "common.training.finetuning.training": ("finetune",),
    },
)
