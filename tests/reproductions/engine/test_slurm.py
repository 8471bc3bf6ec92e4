"""A grid on a real SLURM: two nodes on this host, one of them killed, one task preempted; every record is there once.

Its daemons run as root in a folder of their own, with their own keys and ports, and are ended afterwards.
"""

import collections
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.pruning.recipe import Recipe
from common.records.results import Store
from common.utils import locks
from common.utils.paths import ROOT
from reproductions.engine import workers
from reproductions.engine.work import Work

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "scancel")
ABSENT = [program for program in PROGRAMS if shutil.which(program) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(ABSENT), reason=f"there is no {', '.join(ABSENT)} here"),
    pytest.mark.skipif(os.getuid() != 0, reason="SLURM's daemons have to run as root"),
]
# cred_expire: for so long a job that is queued again waits; slurmd's time-out: until a node counts as lost.
CONFIG = """ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
JobRequeue=1
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def said(*command) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, (
            f"{what}: not within {seconds} s\n{said('squeue')}{said('sinfo', '-N', '-l')}"
        )
        time.sleep(0.2)
    return result


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [socket_.getsockname()[1] for socket_ in sockets]
    for socket_ in sockets:
        socket_.close()
    return ports


@pytest.fixture
def slurm(monkeypatch):
    """A SLURM with two nodes of one core each; its folder."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # munge wants the way to its socket open
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=socket.gethostname(), ports=free_ports(3)))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons = []

    def start(*command):
        daemons.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return daemons[-1]

    try:
        start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)
        until((folder / "munge.socket").exists, 20, "munged's socket")
        start("slurmctld", "-D")
        nodes = {name: start("slurmd", "-D", "-N", name) for name in ("n1", "n2")}
        until(lambda: said("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], 60, "two idle nodes")
        yield SimpleNamespace(folder=folder, nodes=nodes)
    finally:
        subprocess.run(["scancel", "--state=PENDING"], timeout=30)
        subprocess.run(["scancel", "--state=RUNNING"], timeout=30)
        for node in ("n1", "n2"):
            kill(node, folder)
        for daemon in reversed(daemons):
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def of_node(node, folder):
    """(process, its parent) of every process that this SLURM has started on a node."""
    variables = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={folder}/slurm.conf".encode()}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if variables <= set((path / "environ").read_bytes().split(b"\0")):
                yield int(path.name), int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue


def kill(node, folder):
    """End what runs on a node as a power cut would: first those that would report it."""
    processes = list(of_node(node, folder))
    minders = {parent for _, parent in processes if "slurmstepd" in Path(f"/proc/{parent}/cmdline").read_text()}
    for process in [*minders, *(process for process, _ in processes)]:
        try:
            os.kill(process, 9)
        except ProcessLookupError:
            continue


def test_a_node_that_is_lost_and_a_task_that_is_preempted_cost_no_record(slurm, monkeypatch):
    shared = slurm.folder / "shared"
    log = slurm.folder / "log"
    values = {"LAYERLAB_RESULTS": shared, "STUB_LOG": log, "STUB_SECONDS": 4, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    recipes = [Recipe("llama-2-7b", "paper", fidelity=f"f{number}") for number in range(8)]
    work = [Work(recipe, "row", ["piqa", "copa", "boolq"]) for recipe in recipes]
    cells = {(entry.recipe.hash, benchmark) for entry in work for benchmark in entry.benchmarks}
    worker = workers.Worker(tuple(work), time.time_ns(), measure="stub_measure", patience=5)
    jobs = workers.slurm(worker, workers.slurm_options("partition=main,array=2,minutes=60"), slurm.folder / "jobs")
    assert len(jobs) == 2

    def begun():
        return (
            collections.Counter(tuple(line.split()[1:]) for line in log.read_text().splitlines())
            if log.exists()
            else {}
        )

    def measuring(node):
        processes = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
        return [process for process, _ in of_node(node, slurm.folder) if str(process) in processes]

    # What SLURM sends before it takes a node away; scancel would send it again once the task is back.
    os.kill(until(lambda: measuring("n2"), 120, "a task on the second node")[0], signal.SIGUSR2)
    until(lambda: measuring("n1"), 60, "a task on the first node")
    slurm.nodes["n1"].kill()
    slurm.nodes["n1"].wait()
    kill("n1", slurm.folder)
    until(lambda: not said("squeue", "-h").strip(), 600, "every task")
    store = Store(shared, None)
    logs = "\n".join(f"{p.name}\n{p.read_text()}" for p in sorted((slurm.folder / "jobs").glob("*_log.out")))
    assert {cell for cell in cells if store.path(*_of(work, cell)).exists()} == cells, logs
    assert all(store.get(*_of(work, cell)).status == "ok" for cell in cells)
    assert all(locks.take(path) is not None for path in shared.rglob(".lock"))
    assert set(begun()) == cells and sum(begun().values()) <= len(cells) + 2  # each of the two lost one cell
    restarts = [path.read_text() for path in (slurm.folder / "jobs").glob("*_log.out")]
    assert sum(text.count("Starting with") for text in restarts) >= len(jobs) + 1
    assert any("Caught signal SIGUSR2" in text for text in restarts)


def _of(work, cell):
    return next(entry.recipe for entry in work if entry.recipe.hash == cell[0]), cell[1]
