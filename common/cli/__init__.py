"""The papers' methods as tools: `python -m papers.<paper> --model NAME_OR_PATH --remove 8 --out DIR`.

A paper's `options` declares its command line, and its `tool` a `Method`, which changes the model. The rest is shared:
`options` and checks, the `Job` (`job`), evaluation before and after, the checkpoint and its card (`run`). `command`
runs a tool: it refuses most mistakes before torch is loaded.
"""

from common.console import lazy

__getattr__, __all__ = lazy.names(__name__, {"common.cli.job": ("Job",), "common.cli.method": ("Method",)})
