"""Settings of the test process; the fixtures of all tests are in shared_fixtures.py."""

import gc
import os

# No test reads a user's mirror of the hub or results.
for name in ("LAYERLAB_HUB", "LAYERLAB_RESULTS"):
    os.environ.pop(name, None)
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # a thread for each tensor of a tiny model takes longer than reading it
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # importing peft loads torch's compiler otherwise, which no test uses
gc.disable()  # while libraries and tests are imported: a sixth of that time


def pytest_configure(config):
    """Load the shared fixtures, and torch with them, unless this process only hands tests to its workers."""
    workers = getattr(config.option, "numprocesses", None) and not config.option.collectonly
    if hasattr(config, "workerinput") or not workers:
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_modifyitems(items):
    """Begin with what needs the whole site, which one process builds: at the end the others would wait for it."""
    items.sort(key=lambda item: "site" not in item.fixturenames)


def pytest_collection_finish():
    """Collect garbage from here on."""
    gc.enable()
