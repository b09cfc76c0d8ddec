"""Experiments to values: layers, presets, stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_core.errors import ConfigError, EnvironmentFault, ExitCode, UserError

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def notices(toy: Toy, *words: str) -> list[str]:
    return [str(notice) for notice in toy.check("exp.yaml", *words)]


# --- layers -------------------------------------------------------------------------------------------------------


def test_layers_weakest_first(toy: Toy) -> None:
    toy.experiment("hidden_size: 48\n")
    experiment = toy.resolve("exp.yaml", "lr=1e-4")
    assert experiment.config.plain() == {
        "lr": 1e-4,
        "train_iters": 5,
        "num_layers": 4,
        "save": None,
        "hidden_size": 48,
    }
    assert str(experiment.origin_of("num_layers")) == "toy/models/small.yaml:2:13"
    assert str(experiment.origin_of("lr")) == "command line, argument 1"
    assert experiment.layers == {
        "exp.yaml": "experiment",
        "toy/modules/pre_trainer.yaml": "module defaults",
        "toy/models/small.yaml": "model preset",
        "toy/models/base.yaml": "model preset",
        "command line, argument 1": "command line",
    }
    assert [file.name for file in experiment.files] == ["exp.yaml", "pre_trainer.yaml", "small.yaml", "base.yaml"]


def test_who_and_where_have_defaults_and_can_be_set_on_the_command_line(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    toy.environ["USER"] = "ada"
    experiment = toy.resolve()
    assert experiment.folder == Path("output/default/ada/exp")
    experiment = toy.resolve("exp.yaml", "exp_name=1.10", "--work-group", "amd", "workspace=~/runs")
    assert experiment.folder == Path.home() / "runs/amd/ada/1.10"


def test_numbers_as_names_of_files_and_runs(toy: Toy) -> None:
    toy.write("plugin/presets/models/7.yaml", "num_layers: 7\n")
    toy.write("exp.yaml", "exp_name: 1.10\nmodules: {pre_trainer: {framework: toy, model: 7}}\n")
    assert (toy.resolve().exp_name, toy.resolve().get("num_layers")) == ("1.10", 7)


def test_sections_are_checked_after_substitution(toy: Toy) -> None:
    toy.environ["N"] = "two"
    toy.experiment("lr: 1\n", top="launch: {nnodes: '${N}'}\n")
    assert toy.errors() == ["exp.yaml:1:18: 'launch.nnodes': expected a whole number, got the text 'two'"]


def test_sections_beside_the_parameters(toy: Toy) -> None:
    top = "env: {A: 007, B: 1.10, C: true, D: '${HOME_DIR}/x', E: '${LONG}'}\nlaunch: {nnodes: 2}\n"
    toy.experiment("lr: 1\n", top=top)
    toy.environ |= {"HOME_DIR": "/home", "LONG": "1.10"}
    experiment = toy.resolve("exp.yaml", "launch.nproc_per_node=2", "env.NCCL_DEBUG=INFO", "--launch.master-port", "9")
    assert experiment.env.plain() == {
        "A": "007",
        "B": "1.10",
        "C": True,
        "D": "/home/x",
        "E": "1.10",
        "NCCL_DEBUG": "INFO",
    }
    assert experiment.launch.plain() == {"nnodes": 2, "nproc_per_node": 2, "master_port": 9}


def test_a_parameter_beats_a_section_of_the_same_name(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    assert toy.resolve("exp.yaml", "metrics.sinks=[console]").metrics.plain() == {"sinks": ["console"]}


def test_a_misspelled_key_of_the_experiment_on_the_command_line(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    assert toy.errors("exp.yaml", "exp_nam=x", "lunch.nnodes=2") == [
        "command line, argument 1: unknown key 'exp_nam'; did you mean 'exp_name'?",
        "command line, argument 2: unknown key 'lunch.nnodes'; did you mean 'launch.nnodes'?",
    ]


def test_the_full_path_of_a_parameter_and_of_the_presets(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    experiment = toy.resolve("exp.yaml", "modules.pre_trainer.overrides.lr=2", "modules.pre_trainer.model=base")
    assert (experiment.get("lr"), experiment.model, experiment.get("num_layers")) == (2.0, "base", 2)


def test_dashes_in_keys_that_have_underscores(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    experiment = toy.resolve("exp.yaml", "--train-iters", "7", "--train.micro-batch-size=3")
    assert (experiment.get("train_iters"), experiment.get("train.micro_batch_size")) == (7, 3)


def test_substitution_reaches_parameters_and_sections(toy: Toy) -> None:
    toy.environ |= {"ITERS": "20", "REV": "007", "MODEL": "base"}
    toy.experiment(
        "train_iters: ${ITERS}\nrevision: ${REV}\nfreq: ${launch.nnodes}\nhidden_size: ${num_layers}\n",
        top="exp_name: ${NAME:run}-${train_iters}\nlaunch: {nnodes: 3}\n",
    )
    experiment = toy.resolve("exp.yaml", "modules.pre_trainer.model=${MODEL}")
    assert experiment.exp_name == "run-20"
    assert [experiment.get(key) for key in ("train_iters", "revision", "freq", "hidden_size")] == [20, "007", 3, 2]
    assert experiment.model == "base"


def test_numbers_at_text_keys_stay_as_they_were_written(toy: Toy) -> None:
    toy.environ["REV"] = "1.10"
    toy.experiment("revision: 1.10\n")
    assert toy.resolve().get("revision") == "1.10"
    assert toy.resolve("exp.yaml", "revision=1e3").get("revision") == "1e3"
    assert toy.resolve("exp.yaml", "revision=${REV}").get("revision") == "1.10"


def test_whole_numbers_at_float_keys_become_floats(toy: Toy) -> None:
    toy.experiment("lr: 1\n")
    assert isinstance(toy.resolve().get("lr"), float)


# --- presets ------------------------------------------------------------------------------------------------------


def test_presets_by_name_with_or_without_ending_and_by_path(toy: Toy) -> None:
    toy.write("mine.yaml", "extends: small\nhidden_size: 99\n")
    toy.write("small.yaml", "extends: small.yaml\nhidden_size: 98\n")
    for model, hidden, layers in (("small.yaml", 32, 4), ("small", 32, 4), ("./mine.yaml", 99, 4), ("./small", 98, 4)):
        toy.write("exp.yaml", f"modules: {{pre_trainer: {{framework: toy, model: {model}}}}}\n")
        experiment = toy.resolve()
        assert (experiment.get("hidden_size"), experiment.get("num_layers")) == (hidden, layers)


def test_a_path_is_relative_to_where_it_stands(toy: Toy) -> None:
    toy.write("sub/mine.yaml", "hidden_size: 99\n")
    toy.write("mine.yaml", "hidden_size: 98\n")
    toy.write("sub/exp.yaml", "modules: {pre_trainer: {framework: toy, model: ./mine.yaml}}\n")
    assert toy.resolve("sub/exp.yaml").get("hidden_size") == 99
    assert toy.resolve("sub/exp.yaml", "modules.pre_trainer.model=./mine").get("hidden_size") == 98
    (message,) = toy.errors("sub/exp.yaml", "modules.pre_trainer.model=./nobody")
    assert message.startswith("command line, argument 1: there is no preset file './nobody'")


def test_unknown_presets_are_named_with_a_suggestion(toy: Toy) -> None:
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, model: smal.yaml, config: pre}}\n")
    assert toy.errors() == [
        "exp.yaml:1:48: backend 'toy' has no model preset 'smal'; did you mean 'small'?",
        "exp.yaml:1:67: backend 'toy' has no module preset 'pre'; there are: pre_trainer",
    ]


def test_presets_and_models_of_other_plugins(make_toy: Callable[[str], Toy]) -> None:
    toy = make_toy(
        """
        from primus_core.plugins.records import Model, PresetPath

        @hookimpl
        def primus_preset_paths():
            yield PresetPath(backend="toy", path=HERE / "more")
            yield PresetPath(backend="other", path=HERE / "none")

        @hookimpl
        def primus_models():
            yield Model(backend="toy", name="theirs", preset=HERE / "theirs.yaml", builder="theirs:build")
        """
    )
    toy.write("plugin/more/models/extra.yaml", "extends: [base, theirs]\n")
    toy.write("plugin/theirs.yaml", "hidden_size: 7\n")
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, model: extra}}\n")
    assert (toy.resolve().get("hidden_size"), toy.resolve().get("num_layers")) == (7, 2)
    assert toy.resolve().builder is None
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, model: theirs.yaml}}\n")
    assert toy.resolve().builder == "theirs:build"
    toy.write("plugin/more/models/small.yaml", "hidden_size: 7\n")
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, model: small}}\n")
    (message,) = toy.errors()
    assert "preset 'small' exists twice" in message


def test_nested_presets_extend_by_relative_path(toy: Toy) -> None:
    toy.write("plugin/presets/models/deep/er.yaml", "extends: [../base.yaml, side]\n")
    toy.write("plugin/presets/models/deep/side.yaml", "lr: 0.5\n")
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, model: deep/er}}\n")
    experiment = toy.resolve()
    assert (experiment.get("num_layers"), experiment.get("lr")) == (2, 0.5)
    assert str(experiment.origin_of("lr")) == "toy/models/deep/side.yaml:1:5"


def test_without_module_defaults(toy: Toy) -> None:
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy, config: null, model: small}}\n")
    experiment = toy.resolve()
    assert experiment.config.plain() == {}
    assert experiment.model == "small"


# --- extends ------------------------------------------------------------------------------------------------------


def test_experiments_extend_others_later_wins_the_file_itself_last(toy: Toy) -> None:
    toy.experiment("lr: 1\ntrain_iters: 1\nhidden_size: 1\n", name="sub/one.yaml")
    toy.experiment("lr: 2\ntrain_iters: 2\n", name="sub/two.yml")
    toy.experiment("lr: 3\n", top="extends: [sub/one.yaml, sub/two]\n")
    experiment = toy.resolve()
    assert [experiment.get(key) for key in ("lr", "train_iters", "hidden_size")] == [3.0, 2, 1]
    assert str(experiment.origin_of("hidden_size")) == "sub/one.yaml:8:20"


def test_bases_are_understood_with_a_notice(toy: Toy) -> None:
    toy.experiment("train_iters: 1\n", name="one.yaml")
    toy.experiment("lr: 3\n", top="bases: [one.yaml]\n")
    assert toy.resolve().get("train_iters") == 1
    assert notices(toy) == ["exp.yaml:1:1: 'bases' is the old name of 'extends' (primus config migrate)"]


def test_extending_what_is_not_there(toy: Toy) -> None:
    toy.write("other.yaml", "a: 1\n")
    toy.experiment("lr: 3\n", top="extends: [othr.yaml, 3]\n")
    assert toy.errors() == [
        "exp.yaml:1:11: there is no file 'othr.yaml' to extend beside exp.yaml; did you mean 'other.yaml'?",
        "exp.yaml:1:22: 'extends' takes names or paths, got 3",
    ]


def test_circles_in_presets_name_the_chain(toy: Toy) -> None:
    toy.write("plugin/presets/models/base.yaml", "extends: small\n")
    toy.experiment("lr: 3\n")
    assert toy.errors() == [
        "toy/models/base.yaml:1:10: files extend each other in a circle: "
        "toy/models/small.yaml -> toy/models/base.yaml -> toy/models/small.yaml"
    ]


# --- stages and backends ------------------------------------------------------------------------------------------


def test_the_stage_picks_the_module(toy: Toy) -> None:
    toy.write(
        "exp.yaml",
        "modules: {pre_trainer: {framework: toy}, sft_trainer: {framework: toy, overrides: {lr: 5}}}\n",
    )
    assert toy.resolve().module == "pre_trainer"
    assert toy.resolve(stage="posttrain").module == "sft_trainer"
    assert toy.resolve(stage="posttrain").get("lr") == 5.0


def test_an_experiment_for_the_other_stage(toy: Toy) -> None:
    toy.experiment("lr: 3\n", module="post_trainer")
    assert toy.resolve().stage == "posttrain"
    assert toy.errors(stage="pretrain") == [
        "exp.yaml:2:3: this experiment has no module for pretrain, only 'post_trainer'; use: primus train posttrain"
    ]


def test_two_modules_for_one_stage(toy: Toy) -> None:
    toy.write("exp.yaml", "modules:\n  post_trainer: {framework: toy}\n  sft_trainer: {framework: toy}\n")
    assert toy.errors() == ["exp.yaml:3:3: both post_trainer and sft_trainer are for posttrain; keep one"]


def test_backend_replaces_the_framework(toy: Toy) -> None:
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: tony}}\n")
    assert toy.resolve(backend="toy").backend == "toy"
    (message,) = toy.errors()
    assert message.startswith("exp.yaml:1:36: unknown backend 'tony'")
    assert "did you mean 'toy'?" in message
    with pytest.raises(UserError, match="unknown backend 'other'"):
        toy.resolve(backend="other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "exp.yaml:1:1: the file is empty; an experiment has 'modules'"),
        ("exp_name: x\n", "exp.yaml:1:1: 'modules' with a 'pre_trainer' is missing"),
        ("modules: {}\n", "exp.yaml:1:1: 'modules' is empty; it takes one of pre_trainer, post_trainer, sft_trainer"),
        ("modules: {pre_trainer: 3}\n", "exp.yaml:1:24: 'modules.pre_trainer' is a section with keys of its own"),
        (
            "modules: {pre_trainer: {config: null}}\n",
            "exp.yaml:1:11: 'modules.pre_trainer' names no 'framework' (the backend)",
        ),
        ("modules: {pretrainer: {framework: toy}}\n", "exp.yaml:1:11: unknown key 'modules.pretrainer'; did you mean"),
        ("exp_name: ../x\nmodules: {pre_trainer: {framework: toy}}\n", "exp.yaml:1:11: 'exp_name' is part of a path"),
        (
            'exp_name: "x\\ny"\nmodules: {pre_trainer: {framework: toy}}\n',
            r"exp.yaml:1:11: 'exp_name' is part of a path and cannot be 'x\ny'",
        ),
    ],
)
def test_experiments_that_are_none(toy: Toy, text: str, message: str) -> None:
    toy.write("exp.yaml", text)
    errors = toy.errors()
    assert len(errors) == 1
    assert errors[0].startswith(message)


def test_files_that_are_not_there(toy: Toy) -> None:
    assert toy.errors("none.yaml") == ["none.yaml: cannot be read: No such file or directory"]


def test_old_keys_give_notices(toy: Toy) -> None:
    toy.write(
        "exp.yaml",
        "platform: {config: azure.yaml}\nmodules: {pre_trainer: {framework: toy, trainer_class: X}}\n",
    )
    assert notices(toy) == [
        "exp.yaml:1:1: 'platform' does nothing: the hardware is recognised",
        "exp.yaml:2:41: 'modules.pre_trainer.trainer_class' does nothing: the backend knows its trainer",
    ]


# --- the user's own defaults --------------------------------------------------------------------------------------


def test_user_defaults_are_the_weakest_and_hold_sections_only(toy: Toy) -> None:
    toy.environ["HOME"] = str(toy.folder / "home")
    path = toy.write("home/.config/primus/config.yaml", "user_name: ada\nlaunch: {nproc_per_node: 7, nnodes: 1}\n")
    toy.experiment("lr: 1\n", top="launch: {nnodes: 2}\n")
    experiment = toy.resolve()
    assert experiment.launch.plain() == {"nproc_per_node": 7, "nnodes": 2}
    assert experiment.user_name == "ada"
    assert path in experiment.files
    assert experiment.layers["~/.config/primus/config.yaml"] == "user defaults"
    toy.write("home/.config/primus/config.yaml", "modules: {}\nlunch: 1\n")
    assert [error.partition(";")[0] for error in toy.errors()] == [
        "~/.config/primus/config.yaml:1:1: 'modules' cannot be set here",
        "~/.config/primus/config.yaml:2:1: 'lunch' cannot be set here",
    ]
    toy.environ["PRIMUS_NO_USER_CONFIG"] = "1"
    assert path not in toy.resolve().files


# --- hooks --------------------------------------------------------------------------------------------------------

DERIVE = """
@hookimpl
def primus_resolve_config(experiment):
    if experiment.get("save") is None:
        return {"save": "checkpoints", "train.steps": experiment.get("train_iters")}
"""


def test_derived_values_stand_below_the_users_own(make_toy: Callable[[str], Toy]) -> None:
    toy = make_toy(DERIVE)
    toy.experiment("lr: 1\ntrain: {steps: 3}\n")
    experiment = toy.resolve()
    assert experiment.get("save") == "checkpoints"
    assert str(experiment.origin_of("save")) == "derived by primusfile"
    assert experiment.get("train.steps") == 3
    assert toy.resolve("exp.yaml", "save=there").get("save") == "there"


def test_a_hook_that_fails_is_named(make_toy: Callable[[str], Toy]) -> None:
    toy = make_toy("@hookimpl\ndef primus_resolve_config(experiment):\n    return 1 / 0\n")
    toy.experiment("lr: 1\n")
    with pytest.raises(EnvironmentFault, match="primusfile"):
        toy.resolve()


CHECK = """
from primus_core.errors import Problem

@hookimpl
def primus_check_config(experiment, context):
    if experiment.get("hidden_size") % 16:
        yield Problem(experiment.origin_of("hidden_size"), "does not divide by 16")
    if context.world_size is None:
        yield Problem(experiment.origin_of("lr"), "the world is unknown", "notice")
"""


def test_checks_of_plugins_run_when_types_are_right(make_toy: Callable[[str], Toy]) -> None:
    toy = make_toy(CHECK)
    toy.experiment("lr: 1\nhidden_size: 17\n")
    assert toy.errors() == ["exp.yaml:7:20: does not divide by 16"]
    assert toy.errors("exp.yaml", "hidden_size=x") == [
        "command line, argument 1: 'hidden_size': expected a whole number, got the text 'x'"
    ]
    assert toy.errors("exp.yaml", "hiden=x") == [
        "command line, argument 1: unknown key 'hiden'",
        "exp.yaml:7:20: does not divide by 16",
    ]
    assert notices(toy, "hidden_size=32") == ["exp.yaml:6:11: the world is unknown"]


def test_required_plugins(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.experiment("lr: 1\n", top="requires: [pytest>=1, pytest<1, primus-nowhere, '=x']\n")
    errors = toy.errors()
    assert [error.split(" (")[0].split(", installed")[0] for error in errors] == [
        "exp.yaml:1:23: requires: pytest<1",
        "exp.yaml:1:33: requires: primus-nowhere is not installed",
        "exp.yaml:1:49: requires: '=x' is not a requirement such as primus-megatron>=0.1",
    ]


def test_an_error_of_the_configuration_is_the_users(toy: Toy) -> None:
    with pytest.raises(ConfigError) as caught:
        toy.resolve("none.yaml")
    assert caught.value.exit_code is ExitCode.USER_INPUT
