"""Stands for `reproductions.engine.execute` in processes that tests start: a cell takes ``STUB_SECONDS`` and no model.

``STUB_LOG`` gets a line for each cell that is begun: process, recipe, benchmark. The process that is the first to begin
``STUB_KILLS`` (RECIPE BENCHMARK) kills itself there. With ``STUB_REFUSES`` there is no device for anybody.
"""

import os
import signal
import time
from types import SimpleNamespace

from common.utils.errors import UserError


def device_for(asked, dtype, work):
    if "STUB_REFUSES" in os.environ:
        raise UserError(os.environ["STUB_REFUSES"])
    return asked or "cpu"


def held_together(recipe):
    return 1


def prepare(recipe, **options):
    return SimpleNamespace(recipe=recipe, details={}, provenance={})


def benchmark(prepared, name):
    cell = f"{prepared.recipe.hash} {name}"
    log = os.open(os.environ["STUB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{os.getpid()} {cell}\n".encode())
    os.close(log)
    if os.environ.get("STUB_KILLS") == cell and not os.path.exists(marker := os.environ["STUB_LOG"] + ".killed"):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(os.environ.get("STUB_SECONDS", 0)))
    return {"acc": len(name) / 10}, {}, {}
