"""Build once what several tests of the published results look at."""

import os

import pytest
from filelock import FileLock

from reproductions.render.evidence import Evidence, Loaded
from reproductions.site import pages


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """The published records alone."""
    return Evidence(Loaded(None))


@pytest.fixture(scope="session")
def site(evidence, tmp_path_factory):
    """The folder of the site, built once for all processes of a run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site" / "report"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "lock"):
        if not folder.exists():
            pages.build(evidence, folder)
    return folder
