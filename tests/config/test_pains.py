"""Pains that users of trainers have reported, each with the behaviour that spares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_core.config.render import dump, origins

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def test_p01_a_misspelled_block_or_key_is_an_error_with_its_place(toy: Toy) -> None:
    toy.write(
        "exp.yaml",
        "modules:\n  pre_trainer:\n    framework: toy\n    overides: {train: {steps: 7}}\n",
    )
    assert toy.errors() == ["exp.yaml:4:5: unknown key 'overides'; did you mean 'overrides'?"]
    toy.experiment("train: {micro_batchsize: 4}\n")
    assert toy.errors("exp.yaml", "lr=1", "train.micro_batchsize=4") == [
        "command line, argument 2: unknown key 'train.micro_batchsize'; did you mean 'train.micro_batch_size'?"
    ]
    assert toy.errors() == [
        "exp.yaml:6:15: unknown key 'train.micro_batchsize'; did you mean 'train.micro_batch_size'?"
    ]


def test_p02_renamed_options_keep_working_and_say_so(toy: Toy) -> None:
    toy.experiment("use_turbo_grouped_mm: true\n")
    assert toy.resolve().get("use_turbo_grouped_gemm") is True
    (notice,) = toy.check()
    assert str(notice).startswith("exp.yaml:6:7: 'use_turbo_grouped_mm' is now called 'use_turbo_grouped_gemm'")


def test_p03_the_declared_type_decides(toy: Toy) -> None:
    toy.experiment("lr: 1e-5\nrevision: 007\nsave: no\ntrain: {lr: 2}\n")
    experiment = toy.resolve("exp.yaml", "train.lr=3e-4")
    assert [experiment.get(key) for key in ("lr", "train.lr", "revision", "save")] == [1e-5, 3e-4, "007", "no"]
    toy.experiment('lr: "1e-5"\nnum_layers: 08\n')
    assert toy.errors() == [
        "exp.yaml:6:11: 'lr': expected a number, got the text '1e-5' (quoted?)",
        "exp.yaml:7:19: 'num_layers': expected a whole number or null, got the text '08'",
    ]


def test_p04_duplicate_keys_circles_and_missing_variables_have_places(toy: Toy) -> None:
    toy.write("exp.yaml", "modules: {pre_trainer: {framework: toy}}\nenv: {A: 1}\nmodules: {}\n")
    assert toy.errors() == ["exp.yaml:3:1: duplicate key 'modules' (first set at line 1)"]
    toy.experiment("lr: 1\n", name="a.yaml", top="extends: b.yaml\n")
    toy.experiment("lr: 1\n", name="b.yaml", top="extends: a.yaml\n")
    assert toy.errors("a.yaml") == ["b.yaml:1:10: files extend each other in a circle: a.yaml -> b.yaml -> a.yaml"]
    toy.experiment("lr: ${LEARNING_RATE}\n")
    (message,) = toy.errors()
    assert message.startswith("exp.yaml:6:11: 'lr': ${LEARNING_RATE}: the environment variable is not set")


def test_p05_an_option_of_a_newer_engine_is_named_as_such(toy: Toy) -> None:
    toy.experiment("enable_liger_kernel: true\n")
    assert toy.errors() == [
        "exp.yaml:6:7: 'enable_liger_kernel' is not an option of toy-engine 2.0 "
        "(available since 2.5: pip install 'toy-engine>=2.5')"
    ]


def test_p06_an_experiment_for_another_command_gives_one_sentence(toy: Toy) -> None:
    toy.experiment("anything: 1\nelse: 2\n", module="post_trainer")
    (message,) = toy.errors(stage="pretrain")
    assert message.endswith("use: primus train posttrain")


def test_p08_dotted_keys_reach_into_plain_mappings_and_never_below_a_value(toy: Toy) -> None:
    toy.experiment("extra: {mix: {wiki: 0.1, web: 0.9}}\n", top="env: {NCCL_DEBUG: WARN}\n")
    experiment = toy.resolve("exp.yaml", "env.NCCL_DEBUG=INFO", "extra.mix.wiki=0.3")
    assert experiment.env.plain() == {"NCCL_DEBUG": "INFO"}
    assert experiment.get("extra") == {"mix": {"wiki": 0.3, "web": 0.9}}
    assert "wiki: 0.3  # command line, argument 2" in dump(experiment, origins=True)
    (message, *_) = toy.errors("exp.yaml", "train=1", "train.lr=2")
    assert "argument 1: 'train' is a section" in message
    assert (
        "command line, argument 2: cannot set 'train.lr': 'train' was set to the number 1 by command line, argument 1"
        in toy.errors("exp.yaml", "train=1", "train.lr=2")
    )


def test_p10_the_command_line_is_the_strongest_layer_and_says_what_it_replaced(toy: Toy) -> None:
    toy.experiment("save: /old\n")
    entry = origins(toy.resolve("exp.yaml", "save=/new"))["save"]
    assert (entry["value"], entry["layer"]) == ("/new", "command line")
    assert [(old["value"], old["layer"]) for old in entry["replaced"]] == [
        ("/old", "experiment"),
        (None, "module defaults"),
    ]


def test_p11_the_users_own_defaults_are_listed_and_can_be_switched_off(toy: Toy) -> None:
    toy.environ["HOME"] = str(toy.folder)
    toy.write(".config/primus/config.yaml", "launch: {nproc_per_node: 7}\n")
    toy.experiment("lr: 1\n")
    experiment = toy.resolve()
    assert origins(experiment)["launch.nproc_per_node"]["layer"] == "user defaults"
    assert "~/.config/primus/config.yaml" in dump(experiment).splitlines()[1]
    toy.environ["PRIMUS_NO_USER_CONFIG"] = "1"
    assert toy.resolve().launch.plain() == {}


def test_p16_any_text_arrives_as_it_was_typed(toy: Toy) -> None:
    note = 'a b "c" $HOME;echo hi'
    toy.experiment("lr: 1\n", name="my exp.yaml")
    experiment = toy.resolve("my exp.yaml", f"save={note}")
    assert experiment.get("save") == note
    toy.write("again.yaml", dump(experiment))
    assert toy.resolve("again.yaml").get("save") == note


def test_p17_secrets_are_not_shown(toy: Toy) -> None:
    toy.environ["HF_TOKEN"] = "sekret123"
    toy.experiment("api_key: ${HF_TOKEN}\nvault: sekret123\n", top="env: {WANDB_API_KEY: sekret123}\n")
    experiment = toy.resolve("exp.yaml", "save=${HF_TOKEN}")
    assert experiment.get("api_key") == experiment.get("vault") == experiment.get("save") == "sekret123"
    for text in (dump(experiment), dump(experiment, origins=True), repr(origins(experiment))):
        assert "sekret123" not in text
        assert "***" in text or "${HF_TOKEN}" in text
