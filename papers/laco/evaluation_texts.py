"""The text that LaCo's Table 8 lets models continue."""

from common.evaluation.generation import PROMPT_SETS, PromptSet

# Quoted from the paper, Table 8: an item of XSum, and the request after it.
_XSUM = (
    "Document: The 18-year-old scored 88.40 to make history in what was the fifth and the final stop of the World Cup "
    "season.\nShe came ahead of Sweden's Emma Dahlstrom and Swiss Mathilde Gremaud.\nBoston-born Atkin, who initially "
    "competed for the US before switching to Great Britain aged 15, was making her 15th appearance at a World Cup "
    "event.\nAtkin will be competing at the Freestyle World Championships in Sierra Nevada, Spain (9-19 March). The "
    "event will be live on the BBC Sport website, app, connected TV and red button.\nBased on the previous text, "
    "provide a brief single summary:"
)
PROMPT_SETS["laco-xsum"] = PromptSet(lambda: [_XSUM], 100, "LaCo, Table 8")
