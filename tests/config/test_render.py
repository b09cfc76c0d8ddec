"""Resolved experiments as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_core.config.experiment import Experiment
from primus_core.config.render import dump, origins, shown

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def everything(experiment: Experiment) -> dict[str, Any]:
    """All that an experiment says, apart from places."""
    names = ("work_group", "user_name", "exp_name", "workspace", "module", "stage", "backend", "model")
    sections = ("config", "env", "launch", "metrics")
    return {name: getattr(experiment, name) for name in names} | {
        section: getattr(experiment, section).plain() for section in sections
    }


def test_what_is_shown_resolves_to_the_same(toy: Toy) -> None:
    toy.environ |= {"ITERS": "12"}
    toy.experiment(
        """
        train_iters: ${ITERS}
        save: $${HOME}/x
        extra: {a: [1, {b: no}], "c d": "5", e: {}, f: null, "g.h": 1e-5}
        revision: 007
        recompute: [a, "b: c", "# d"]
        """,
        top="env: {A: 007, B: null}\nlaunch: {nnodes: 2}\nrequires: [pytest]\n",
    )
    first = toy.resolve("exp.yaml", "lr=2e-4", "train.lr=.5")
    toy.write("again.yaml", dump(first))
    second = toy.resolve("again.yaml")
    assert everything(second) == everything(first)
    assert second.requires is not None
    assert second.requires.value == ["pytest"]
    assert dump(second).splitlines()[2:] == dump(first).splitlines()[2:]
    toy.write("again.yaml", dump(first, origins=True))
    assert everything(toy.resolve("again.yaml")) == everything(first)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
content = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=10
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(extra=st.dictionaries(texts, content, max_size=4), revision=texts, lr=st.floats(allow_nan=False))
def test_any_values_survive_being_shown(toy: Toy, extra: dict[str, Any], revision: str, lr: float) -> None:
    toy.experiment(f"extra: {shown(extra)}\nrevision: {shown(revision)}\nlr: {shown(lr)}\n")
    first = toy.resolve()
    assert (first.get("extra"), first.get("revision"), first.get("lr")) == (extra, revision, lr)
    toy.write("again.yaml", dump(first))
    assert everything(toy.resolve("again.yaml")) == everything(first) | {"exp_name": "exp"}


def test_origins_say_where_and_what_was_replaced(toy: Toy) -> None:
    toy.environ["ITERS"] = "12"
    toy.experiment("train_iters: ${ITERS}\n", top="env: {A: b}\n")
    found = origins(toy.resolve("exp.yaml", "num_layers=9"))
    assert found["train_iters"] == {
        "value": 12,
        "origin": "exp.yaml:7:20",
        "layer": "experiment",
        "written": "${ITERS}",
        "replaced": [{"value": 5, "origin": "toy/modules/pre_trainer.yaml:2:14", "layer": "module defaults"}],
    }
    assert [old["value"] for old in found["num_layers"]["replaced"]] == [4, 2, 1]
    assert found["env.A"]["origin"] == "exp.yaml:1:10"
    text = dump(toy.resolve("exp.yaml", "num_layers=9"), origins=True)
    assert "train_iters: 12  # exp.yaml:7:20 from ${ITERS}, over 5 (toy/modules/pre_trainer.yaml:2:14)" in text
    assert "num_layers: 9  # command line, argument 1, over 4 (toy/models/small.yaml:2:13)" in text
    assert "# from exp.yaml + toy/modules/pre_trainer.yaml + toy/models/small.yaml + toy/models/base.yaml" in text


@pytest.mark.parametrize("with_origins", [False, True])
def test_secrets_are_never_written(toy: Toy, with_origins: bool) -> None:
    toy.environ |= {"MY_TOKEN": "s3cr3t-1", "OTHER": "x"}
    toy.write("plugin/presets/models/small.yaml", "api_key: s3cr3t-0\n")
    toy.experiment(
        "api_key: s3cr3t-2\nvault: s3cr3t-3\nsave: a/${MY_TOKEN}/b\nrecompute: ['${MY_TOKEN}', '${freq}']\n"
        "freq: ${save}\nextra: {a: '${vault}', b: '${env.WANDB_API_KEY}'}\n",
        top="env: {WANDB_API_KEY: s3cr3t-4, TOKENIZERS_PARALLELISM: 'false'}\nmetrics: {wandb: {api_key: s3cr3t-5}}\n",
    )
    experiment = toy.resolve()
    assert experiment.get("save") == "a/s3cr3t-1/b"
    text = dump(experiment, origins=with_origins)
    assert "s3cr3t" not in text + repr(origins(experiment))
    assert 'TOKENIZERS_PARALLELISM: "false"' in text
    assert 'WANDB_API_KEY: "${WANDB_API_KEY}"' in text
    assert with_origins or 'vault: "${PRIMUS_SECRET_VAULT}"  # ***' in text
    toy.write("again.yaml", text)
    toy.environ |= {"PRIMUS_SECRET_API_KEY": "s3cr3t-2", "PRIMUS_SECRET_VAULT": "s3cr3t-3"}
    toy.environ |= {"WANDB_API_KEY": "s3cr3t-4", "PRIMUS_SECRET_METRICS_WANDB_API_KEY": "s3cr3t-5"}
    assert everything(toy.resolve("again.yaml")) == everything(experiment)
    del toy.environ["PRIMUS_SECRET_VAULT"]
    (message,) = toy.errors("again.yaml")
    assert "${PRIMUS_SECRET_VAULT}: the environment variable is not set" in message
