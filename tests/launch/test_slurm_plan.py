"""Plans of the slurm launcher; ``test_slurm.py`` carries them out."""

from __future__ import annotations

import signal

import pytest
from launching import request

from primus_core.errors import ConfigError, UserError
from primus_core.launch import slurm
from primus_core.launch.plan import Plan
from primus_core.launch.slurm import Words

TRAIN = ("train", "pretrain", "--config", "x.yaml")
IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "8"}


def make(*extra: str, argv: tuple[str, ...] = TRAIN, **more) -> Plan:
    options = {"extra": extra, "primus": "primus", "env": (), **more.pop("options", {})}
    return slurm.plan(request(*argv, options=options, **more))


def test_srun_is_taken_where_nothing_is_said():
    expected = (
        "srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 --quit-on-interrupt -N 2 -p gpu "
        "primus direct -- train pretrain --config x.yaml"
    )
    assert " ".join(make("-N", "2", "-p", "gpu").argv) == expected
    assert " ".join(make("srun", "-N", "2", "-p", "gpu").argv) == expected


def test_within_a_job_all_its_machines_and_processors_are_used():
    words = " ".join(make(environ=IN_JOB).argv)
    assert words.startswith("srun --nodes=2 --ntasks=2 --cpus-per-task=8 --ntasks-per-node=1 --cpu-bind=none")
    words = " ".join(make("-N1", "--cpu-bind=cores", "-c4", environ=IN_JOB).argv)
    assert words.startswith(
        "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --quit-on-interrupt -N1 --cpu-bind=cores -c4 "
    )


def test_the_files_options_stand_before_those_of_the_line():
    launch = {"slurm": {"partition": "gpu", "exclusive": True, "mail_user": None, "nodes": 4}}
    words = " ".join(make("--nodes", "2", launch=launch).argv)
    assert "--quit-on-interrupt --partition=gpu --exclusive --nodes=4 --nodes 2 primus" in words
    with pytest.raises(ConfigError, match=r"x.yaml:9:3: launch\.slurm\.nodes must be one value"):
        make(launch={"slurm": {"nodes": [1]}})


def test_a_batch_script():
    argv = ("container", "--image", "a b", "--", *TRAIN, "api_key=sekret", "a=$HOME")
    options = {"env": ("X_TOKEN=sekret", "Y=1"), "requeue": True}
    plan = make("sbatch", "-N2", "--time", "4:00:00", "--comment=a 'b'", argv=argv, options=options, nested=True)
    assert plan.submits
    assert plan.argv == ("sbatch", "--comment=a 'b'", "/runs/0001/job.sh")
    (script,) = plan.files
    assert script.text == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=e\n"
        "#SBATCH --output=/runs/0001/%j.out\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --signal=B:USR1@180\n"
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH -N2\n"
        "#SBATCH --time 4:00:00\n"
        "\n"
        "export PRIMUS_JOB_SCRIPT=/runs/0001/job.sh\n"
        "exec primus slurm --primus primus --env X_TOKEN --env Y --requeue srun \\\n"
        "  -- container --image 'a b' \\\n"
        "  -- train pretrain --config x.yaml 'api_key=${PRIMUS_SECRET_API_KEY}' 'a=$HOME'\n"
    )
    assert {var.name: var.value for var in plan.env} == {
        "X_TOKEN": "sekret",
        "Y": "1",
        "PRIMUS_SECRET_API_KEY": "sekret",
    }


def test_what_was_given_replaces_the_batch_defaults():
    given = ("-J", "name", "-o", "log", "--signal=B:USR1@60", "--open-mode=truncate", "--ntasks-per-node=1")
    (script,) = make("sbatch", *given).files
    assert script.text.count("#SBATCH") == 5
    assert "#SBATCH --output=/runs/0001/%A_%a.out" in make("sbatch", "-a0-3").files[0].text


def test_time_that_runs_out_puts_the_job_back_only_if_asked_for():
    assert make(environ=IN_JOB).after == {}
    assert make(options={"requeue": True}).after == {}
    assert make(environ=IN_JOB, options={"requeue": True}).after == {signal.SIGUSR1: ("scontrol", "requeue", "7")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("srunn", "-N2"), "slurm: unexpected word 'srunn'"),
        (("--export=NONE",), "--export=ALL,NAME=VALUE"),
        (("--export", "FOO"), "--export=ALL,NAME=VALUE"),
    ],
)
def test_what_would_not_work_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        make(*words)
    make("--export=ALL,FOO=1")


def test_options_of_slurm_are_found_in_all_their_forms():
    words = Words.of(["-N", "2", "-pgpu", "--time=4", "--mem", "5", "--exclusive", "-J", "a", "--nice"])
    assert words.value("-N", "--nodes") == "2"
    assert words.value("-p", "--partition") == "gpu"
    assert (words.value("--time"), words.value("--mem"), words.value("--exclusive")) == ("4", "5", "")
    assert not words.has("--ti")
    assert not words.has("-n", "--ntasks")


@pytest.mark.parametrize(
    ("words", "argv", "more", "ranks"),
    [
        (("-N2",), TRAIN, {}, None),
        (("-N2",), (*TRAIN, "--nproc", "4"), {}, 8),
        (("-N", "2", "--gpus-per-node=mi300x:8"), TRAIN, {}, 16),
        (("-N2-4",), TRAIN, {"environ": {"GPUS_PER_NODE": "8"}}, None),
        (("--nodes=4",), TRAIN, {"environ": {"GPUS_PER_NODE": "8"}}, 32),
        ((), TRAIN, {"environ": IN_JOB, "launch": {"nproc_per_node": 2}}, 4),
    ],
)
def test_ranks_are_known_before_a_job_is_handed_in_if_they_can_be(words, argv, more, ranks):
    assert make("srun", *words, argv=argv, **more).ranks == ranks
    assert make("sbatch", *words, argv=argv, **more).ranks == ranks
