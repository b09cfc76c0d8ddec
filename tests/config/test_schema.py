"""Keys, types and names that changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_core.config.schema import for_backend, nearest
from primus_core.errors import EnvironmentFault
from primus_core.plugins.records import Backend

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def backend(schemas: Path) -> Backend:
    return Backend(
        name="toy",
        summary="",
        engine="toy-engine",
        engine_versions=">=1",
        trainer="",
        schemas=schemas,
        presets=schemas,
    )


@pytest.mark.parametrize(
    ("installed", "taken"), [("2.0", "2.0"), ("2.3", "2.0"), ("9", "2.5"), ("0.1", "1.0"), (None, "2.5"), ("10", "2.5")]
)
def test_the_nearest_version_is_taken(installed: str | None, taken: str) -> None:
    assert nearest(["2.5", "1.0", "2.0"], installed) == taken


def test_keys_of_the_plugin_are_added(toy: Toy) -> None:
    schema = for_backend(toy.plugins.backend("toy"), "1.0")
    assert schema.version == "1.0"
    assert schema.keys["show_curve"].owner == "primus-toy 0.1"
    assert schema.keys["num_layers"].owner == "toy-engine 1.0"


def test_a_plugin_without_schemas_or_with_broken_ones_is_at_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no schema of toy-engine"):
        for_backend(backend(tmp_path), "1.0")
    (tmp_path / "toy-engine-1.0.json").write_text("{")
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        for_backend(backend(tmp_path), "1.0")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_layers: '4'", "6:19: 'num_layers': expected a whole number or null, got the text '4' (quoted?)"),
        ("num_layers: 1.0", "6:19: 'num_layers': expected a whole number or null, got the number 1.0; write 1"),
        ("num_layers: 1e6", "6:19: 'num_layers': expected a whole number or null, got the number 1e6; write 1000000"),
        ("num_layers: true", "6:19: 'num_layers': expected a whole number or null, got true"),
        ("hidden_size: null", "6:20: 'hidden_size': expected a whole number, got null (nothing)"),
        ("hidden_size: {a: 1}", "6:20: 'hidden_size': expected a whole number, got a mapping"),
        ("lr: [1]", "6:11: 'lr': expected a number, got a list"),
        ("bf16: yes", "6:13: 'bf16': expected true or false, got the text 'yes'; write true"),
        ("bf16: Off", "6:13: 'bf16': expected true or false, got the text 'Off'; write false"),
        ("bf16: 1", "6:13: 'bf16': expected true or false, got the number 1"),
        ("save: true", "6:13: 'save': expected text or null, got true; write 'true' in quotes if the text is meant"),
        ("optimizer: adamm", "6:18: 'optimizer': 'adamm' is not one of adam, sgd; did you mean 'adam'?"),
        ("recompute: [a, 5]", "6:22: 'recompute[1]': expected text, got the number 5"),
        ("recompute: a", "6:18: 'recompute': expected a list of texts or null, got the text 'a'"),
        ("freq: {a: 1}", "6:13: 'freq': expected a whole number or text or a list, got a mapping"),
        ("train: 5", "6:14: 'train' is a section with keys of its own, got the number 5"),
        ("train: {step: 5}", "6:15: unknown key 'train.step'; did you mean 'train.steps'?"),
        ("micro_batch_size: 5", "6:7: unknown key 'micro_batch_size'; did you mean 'train.micro_batch_size'?"),
        ("train.steps: 5", "6:7: unknown key 'train.steps'; write it as train: {steps: ...}"),
        ("zzz: 5", "6:7: unknown key 'zzz'"),
        ("zzz: {lr: 5}", "6:7: unknown key 'zzz'"),
        (
            "enable_liger_kernel: true",
            "6:7: 'enable_liger_kernel' is not an option of toy-engine 2.0 "
            "(available since 2.5: pip install 'toy-engine>=2.5')",
        ),
        ("legacy_norm: true", "6:7: 'legacy_norm' is not an option of toy-engine 2.0 (gone after 1.0)"),
        ("api_key: [s3cr3t]", "6:16: 'api_key': expected text or null, got a list"),
    ],
)
def test_messages(toy: Toy, line: str, message: str) -> None:
    toy.experiment(f"{line}\n")
    assert toy.errors() == [f"exp.yaml:{message}"]


@pytest.mark.parametrize(
    "line",
    [
        "lr: 1",
        "lr: 1e-5",
        "num_layers: null",
        "freq: 2",
        "freq: x",
        "freq: [1, x]",
        "extra: {any: {thing: [1]}}",
        "extra: {}",
        "train: {}",
        "recompute: []",
        "revision: 007",
        "show_curve: false",
    ],
)
def test_what_is_right(toy: Toy, line: str) -> None:
    toy.experiment(f"{line}\n")
    assert toy.errors() == []


def test_secrets_do_not_stand_in_messages(toy: Toy) -> None:
    toy.experiment("vault: s3cr3t\n")
    path = toy.folder / "plugin/schemas/toy-engine-2.0.json"
    content = json.loads(path.read_text())
    content["keys"]["vault"]["choices"] = ["a", "b"]
    path.write_text(json.dumps(content))
    (message,) = toy.errors()
    assert "s3cr3t" not in message
    toy.environ["MY_TOKEN"] = "adam"
    assert toy.errors("exp.yaml", "vault=a", "optimizer=${MY_TOKEN}") == []


def test_renamed_keys_are_taken_with_a_notice(toy: Toy) -> None:
    toy.experiment("use_turbo_grouped_mm: true\n")
    assert toy.resolve().get("use_turbo_grouped_gemm") is True
    assert [str(notice) for notice in toy.check()] == [
        "exp.yaml:6:7: 'use_turbo_grouped_mm' is now called 'use_turbo_grouped_gemm', gone from 3.0 on "
        "(primus config migrate)"
    ]
    experiment = toy.resolve("exp.yaml", "use_turbo_grouped_mm=false")
    assert experiment.get("use_turbo_grouped_gemm") is False


def test_old_and_new_name_together_are_an_error(toy: Toy) -> None:
    toy.experiment("use_turbo_grouped_mm: true\nuse_turbo_grouped_gemm: true\n")
    assert toy.errors() == [
        "exp.yaml:6:7: 'use_turbo_grouped_mm' is the old name of 'use_turbo_grouped_gemm', which is set at exp.yaml:7:7"
    ]


def test_a_name_that_is_over_is_an_error_that_names_the_new_one(toy: Toy) -> None:
    toy.experiment("ancient: 3\n")
    assert toy.errors() == ["exp.yaml:6:7: 'ancient' was renamed to 'num_layers'; toy-engine 2.0 no longer takes it"]


def test_keys_without_effect_give_a_notice_when_the_user_changed_them(toy: Toy) -> None:
    toy.write("plugin/presets/models/small.yaml", "sink_level: DEBUG\n")
    toy.experiment("lr: 1\n")
    assert toy.check() == ()
    toy.experiment("sink_level: INFO\n")
    assert [str(notice) for notice in toy.check()] == [
        "exp.yaml:6:7: 'sink_level' does nothing here: logs are kept per rank"
    ]
    assert toy.check("exp.yaml", "sink_level=null") == ()


def test_keys_that_ask_for_what_cannot_be_had_are_refused_wherever_they_are_set(toy: Toy) -> None:
    toy.experiment("softcap: null\n")
    assert toy.errors() == []
    toy.experiment("softcap: 30.0\n")
    assert toy.errors() == ["exp.yaml:6:16: softcap: capped scores are not part of toy-engine"]
    toy.write("plugin/presets/models/small.yaml", "softcap: 30.0\n")
    toy.experiment("lr: 1\n")
    assert toy.errors() == ["toy/models/small.yaml:1:10: softcap: capped scores are not part of toy-engine"]
