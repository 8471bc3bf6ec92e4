"""Register the texts that LinearPatch evaluates on; its tables' dense rows and those of Prune&Comp are the same."""

from common.evaluation.windowed_perplexity import Protocol, c4_crops, register

# Section 4.1 and official code. C4: 256 crops of long documents of shard 0 of 8. PTB: the validation split, not test.
register(
    Protocol("linearpatch-wikitext2", "wikitext2-test", 2048),
    Protocol("linearpatch-c4", "c4-validation", 2048, sequences=c4_crops),
    Protocol("linearpatch-ptb", "ptb-validation", 2048),
)
