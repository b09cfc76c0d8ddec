"""Training under a real Slurm of two nodes, both on this machine."""

from __future__ import annotations

import json
import re

import pytest
from podman_store import container_options
from slurm_cluster import NODES, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]
TRAIN = ("--", "train", "pretrain", "--config", "toy.yaml")
SMALL = ("--nproc", "1", "--steps", "2")
FOR_EVER = ("--nproc", "1", "--steps", "5000", "--seconds", "0.02")


@pytest.fixture
def submit(desk, slurm):
    """Hand in a job; gives its number."""

    def call(*words: str) -> str:
        done = desk.run("slurm", *words)
        assert done.returncode == 0, done.stderr
        (number,) = re.findall(r"Submitted batch job (\d+)", done.stdout)
        return number

    return call


def result(desk, number: int = 1) -> dict:
    return json.loads((desk.attempt(number) / "result.json").read_text())


def test_two_nodes_train_one_model_in_one_attempt(desk, slurm):
    words = ("--nproc", "2", "--collective", "--steps", "3", "--message", "a 'b' \"c\" $HOME; é\n", "api_key=sekret-0")
    done = desk.run("slurm", "srun", "-N", "2", "--env", "BY_HAND=of the line", *TRAIN, *words)
    assert done.returncode == 0, done.stderr
    assert "4 ranks on cpu" in done.stdout
    assert done.stdout.count("step 3/3  loss 1.3333") == 1
    assert [path.name for path in desk.attempt().parent.iterdir()] == ["0001"]
    assert result(desk)["exit_code"] == 0
    states = [json.loads(file.read_text()) for file in (desk.attempt() / "ranks").iterdir()]
    assert sorted(state["rank"] for state in states) == [0, 1, 2, 3]
    task = json.loads((desk.attempt() / "worker.json").read_text())
    assert task["config"]["message"] == words[-2]
    environ = json.loads((desk.attempt() / "logs/rank-3.log").read_text().partition("environ ")[2].splitlines()[0])
    assert environ["BY_HAND"] == "of the line"
    assert environ["secrets arrived"]
    logs = {file.name for file in (desk.attempt() / "logs").glob("launcher*")}
    assert logs == {"launcher.log", "launcher-1.log"}
    texts = [file.read_text() for file in desk.home.rglob("*") if file.is_file()]
    assert not [text for text in texts if "sekret" in text]


def test_who_failed_is_told_once_whatever_srun_makes_of_the_exit_code(desk, slurm):
    failing = ("--collective", "--bad_rank", "1", "--nproc", "1")
    done = desk.run("slurm", "srun", "--nodes=2", *TRAIN, *failing)
    assert done.returncode == 1
    assert done.stderr.count("rank 1 of 2 failed first") == 1
    assert "ValueError: seq_len 128 is not divisible by cp 3" in done.stderr
    done = desk.run("slurm", "srun", "--nodes=2", *TRAIN, *failing, "--bad_way", "environment")
    assert done.returncode == 3
    assert result(desk, 2)["exit_code"] == 3


def test_wrong_input_starts_no_job(desk, slurm):
    done = desk.run("slurm", "sbatch", "-N2", *TRAIN, "--stepz", "5")
    assert done.returncode == 2
    assert "did you mean 'steps'" in done.stderr
    assert not desk.home.exists()
    done = desk.run("slurm", "sbatch", "-N1", "--partition=nowhere", *TRAIN, *SMALL)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr.lower()
    assert "sbatch refused the job" in done.stderr


def test_more_than_one_task_on_a_node_is_refused(desk, slurm):
    done = desk.run("slurm", "srun", "-N1", "--ntasks-per-node=2", *TRAIN, *SMALL)
    assert done.returncode == 2
    assert "srun started 2 tasks on 1 machines; primus starts the ranks: use --ntasks-per-node=1" in done.stderr


def test_a_batch_job_has_a_script_that_stays_with_the_run(desk, slurm, submit):
    name = "a 'b' $HOME; é"
    number = submit("sbatch", "-N2", f"--comment={name}", *TRAIN, *SMALL, "--collective", "--message", name)
    assert slurm.wait(number, "COMPLETED", "FAILED")["ExitCode"] == "0:0"
    script = (desk.home / "jobs/0001/job.sh").read_text()
    assert (desk.attempt() / "job.sh").read_text() == script
    assert "#SBATCH -N2\n" in script
    assert "step 2/2" in (desk.home / f"jobs/0001/{number}.out").read_text()
    assert json.loads((desk.attempt() / "worker.json").read_text())["config"]["message"] == name
    assert result(desk)["exit_code"] == 0


def test_a_batch_job_that_fails_says_so(desk, slurm, submit):
    number = submit("sbatch", *TRAIN, *SMALL, "--bad_rank", "0")
    assert slurm.wait(number, "COMPLETED", "FAILED")["ExitCode"] == "1:0"
    assert "rank 0 of 1 failed first" in (desk.home / f"jobs/0001/{number}.out").read_text()


def test_each_task_of_an_array_is_a_run_of_its_own(desk, slurm, submit):
    number = submit("sbatch", "--array=0-1", *TRAIN, *SMALL, "exp_name=sweep-${SLURM_ARRAY_TASK_ID:}")
    wait_for(lambda: not slurm.call("squeue", "--noheader"), 90)
    for task in range(2):
        folder = desk.home.with_name(f"sweep-{task}") / "attempts/0001"
        assert json.loads((folder / "result.json").read_text())["exit_code"] == 0
        assert list(desk.home.parent.glob(f"sweep-/jobs/0001/{number}_{task}.out"))


def test_a_requeued_job_makes_the_next_attempt(desk, slurm, submit):
    number = submit("--requeue", "sbatch", "-N2", *TRAIN, *FOR_EVER)
    wait_for(lambda: desk.at_work(1, ranks=2))
    slurm.call("scontrol", "requeue", number)
    wait_for(lambda: desk.at_work(2, ranks=2), 90)
    assert result(desk)["root_cause"].startswith("interrupted: SIGTERM")
    assert slurm.job(number)["Restarts"] == "1"


def test_a_job_whose_time_runs_out_saves_and_goes_on_later(desk, slurm, submit):
    saving = ("--collective", "--resume", "--save_interval", "100000")
    number = submit("--requeue", "sbatch", "-N2", *TRAIN, *FOR_EVER, *saving)
    wait_for(lambda: desk.at_work(1, ranks=2))
    slurm.call("scancel", "--batch", "--signal=USR1", number)  # as Slurm does, ahead of the time limit
    wait_for(lambda: slurm.job(number)["Restarts"] == "1", 60)
    assert "SIGUSR1" in result(desk)["root_cause"]
    (saved,) = (desk.home / "checkpoints").glob("step-*")
    wait_for(lambda: desk.at_work(2, ranks=2), 90)
    events = [json.loads(line) for line in (desk.attempt(2) / "metrics.jsonl").read_text().splitlines()]
    (start,) = [event["start"] if "start" in event else event["step"] for event in events if event["event"] == "expect"]
    assert start == int(saved.name.removeprefix("step-"))


def test_a_node_that_goes_down_costs_an_attempt(desk, slurm, submit):
    number = submit("--requeue", "sbatch", "-N2", *TRAIN, *FOR_EVER)
    wait_for(lambda: desk.at_work(1, ranks=2))
    slurm.call("scontrol", "update", f"nodename={NODES[1]}", "state=down", "reason=test")
    assert slurm.wait(number, "PENDING")["Restarts"] == "1"
    wait_for(lambda: desk.at_work(2, ranks=2), 90)  # it comes back by itself: its slurmd lives


def test_a_job_looks_at_its_nodes_before_it_trains(desk, slurm):
    done = desk.run("slurm", "srun", "-N", "2", "--", "preflight", "--nproc", "1", "--quick", "--tolerance", "0.99")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is wrong" in done.stdout
    assert len(re.findall(r"^\S+/[01] +1 ", done.stdout, re.MULTILINE)) == 2  # nodes of one rank each


@pytest.mark.podman
def test_a_cancelled_job_leaves_no_container(desk, slurm, submit, podman):
    options = [*container_options(), "--env", "SHELL_API_KEY"]
    number = submit("sbatch", "-N2", "--", "container", *options, *TRAIN, *FOR_EVER)
    wait_for(lambda: desk.at_work(1, ranks=2), 90)
    names = podman.containers()
    assert len(names) == 2
    assert all(name.startswith(f"primus-toy-{number}-") for name in names)
    slurm.call("scancel", number)
    wait_for(lambda: not podman.containers(), 60)


@pytest.mark.podman
def test_containers_on_two_nodes_train_one_model(desk, slurm, podman):
    options = [*container_options(), "--env", "SHELL_API_KEY"]
    words = ("--nproc", "1", "--collective", "--steps", "2")
    done = desk.run("slurm", "srun", "-N2", "--", "container", *options, *TRAIN, *words)
    assert done.returncode == 0, done.stderr
    assert "2 ranks on cpu" in done.stdout
    assert "step 2/2" in done.stdout
    assert {file.name for file in desk.attempt().glob("plan*.sh")} == {"plan.sh", "plan-container.sh", "plan-direct.sh"}
