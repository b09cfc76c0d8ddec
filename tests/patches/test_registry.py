import importlib
import sys

import pytest

from primus_core.errors import EnvironmentFault
from primus_core.plugins.records import Condition


def call(ref, *args):
    module, _, name = ref.partition(":")
    return getattr(importlib.import_module(module), name)(*args)


def loss():
    return call("toy.loss:cross_entropy", [1, 2], 1)


def test_a_patch_is_applied_and_recorded(engine, registry, patch, run, marks):
    patches = registry(engine("1.0"), patch(fingerprints=marks))
    assert [decision.status for decision in patches.decide(run())] == ["pending"]
    assert [decision.status for decision in patches.apply("build", run())] == ["applied"]
    assert loss() == 12
    [row] = patches.record()
    assert row["status"] == "applied"
    assert row["because"] == "its target is that of toy-engine 1.0"
    assert row["target"] == "toy.loss:cross_entropy"
    assert row["engine_version"] == "1.0"


def test_a_patch_is_applied_once_in_a_process(engine, registry, patch, run):
    version = engine("1.0")
    first = registry(version, patch())
    first.apply("build", run())
    first.apply("build", run())
    [decision] = registry(version, patch()).apply("build", run())
    assert loss() == 12
    assert decision.status == "applied"
    assert "before" in decision.because


def test_only_the_asked_phase_is_applied(engine, registry, patch, run):
    patches = registry(engine("1.0"), patch(phase="train"), patch(name="toy.more", phase="import"))
    assert [d.patch.name for d in patches.apply("import", run())] == ["toy.more"]
    assert loss() == 12
    assert [row["status"] for row in patches.record()] == ["applied", "pending"]
    patches.apply("train", run())
    assert loss() == 22


def test_a_replacement_may_see_the_run_and_may_be_a_reference(engine, registry, patch, run):
    by_run = patch(replacement=lambda original, run: lambda *args: run.config["loss"])
    registry(engine("1.0"), by_run).apply("build", run(loss=7))
    assert loss() == 7
    engine("1.0")
    by_reference = patch(replacement="functools:cache", name="toy.reference")
    registry("1.0", by_reference).apply("build", run())
    assert call("toy.loss:cross_entropy", (1, 2), 1) == 2
    assert importlib.import_module("toy.loss").cross_entropy.cache_info().misses == 1


def test_unchanged_code_of_a_version_without_fingerprint_is_accepted(engine, registry, patch, run, marks):
    [decision] = registry(engine("1.1"), patch(fingerprints=marks)).apply("build", run())
    assert decision.because == "its target has not changed since toy-engine 1.0"
    assert loss() == 12


@pytest.mark.parametrize(
    ("version", "difference"),
    [
        ("1.2", "its target has changed since toy-engine 1.0: its body changed; its signature is still"),
        ("1.3", "its signature was (logits, target) and is (logits, target, reduction='sum')"),
        ("2.0", "module toy.loss has no cross_entropy; near names: cross_entropy_loss"),
    ],
)
def test_drift_stops_a_required_patch_and_is_reported_for_an_optional_one(
    engine, registry, patch, run, marks, version, difference
):
    engine(version)
    required = registry(version, patch(fingerprints=marks, engine_versions=">=1"))
    with pytest.raises(EnvironmentFault) as failure:
        required.apply("build", run())
    assert difference in str(failure.value)
    assert f"toy-engine {version} (supported: >=1)" in str(failure.value)
    assert required.record()[0]["status"] == "failed"

    optional = registry(version, patch(fingerprints=marks, engine_versions=">=1", required=False))
    [decision] = optional.apply("build", run())
    assert decision.status == "skipped"
    assert difference in decision.because
    assert difference in optional.record()[0]["because"]


def test_a_changed_target_of_a_recorded_version_is_drift(engine, registry, patch, run, marks):
    engine("1.2")
    marks.write_text(marks.read_text().replace('"1.0"', '"1.2"'))
    with pytest.raises(EnvironmentFault, match=r"its target is not that of toy-engine 1\.2: its body changed"):
        registry("1.2", patch(fingerprints=marks)).apply("build", run())


def test_a_patch_whose_fingerprint_was_never_recorded_is_not_trusted(engine, registry, patch, run, tmp_path):
    with pytest.raises(EnvironmentFault, match="no fingerprint of its target is recorded"):
        registry(engine("1.0"), patch(fingerprints=tmp_path / "none.json")).apply("build", run())


def test_the_engine_moved_on_from_the_patch(engine, registry, patch, run):
    engine("1.3")
    required = registry("1.3", patch(phase="train", engine_versions=">=1.0,<1.2"))
    with pytest.raises(EnvironmentFault) as failure:
        required.apply("import", run())  # before any training, whatever the patch's phase is
    assert failure.value.exit_code == 3
    assert "is for toy-engine >=1.0,<1.2, not 1.3" in str(failure.value)
    assert "pip install 'toy-engine>=1,<2'" in str(failure.value)
    [decision] = registry("1.3", patch(engine_versions=">=1.0,<1.2", required=False)).apply("build", run())
    assert decision.status == "skipped"


def test_an_engine_that_is_not_installed(registry, patch, run):
    with pytest.raises(EnvironmentFault, match="toy-engine is not installed"):
        registry(None, patch()).apply("import", run())


# --- conditions


@pytest.mark.parametrize(
    ("condition", "because"),
    [
        ({"platforms": ("cuda", "rocm")}, "only where platform is cuda or rocm"),
        ({"stages": ("posttrain",)}, "only where stage is posttrain"),
        ({"config": {"fp8": True}}, "only where fp8 is True"),
        ({"config": {"optimizer.name": {"adam", "sgd"}}}, "only where optimizer.name is 'adam' or 'sgd'"),
        ({"present": ("no_such_module",)}, "only where no_such_module is installed"),
        ({"missing": ("json",)}, "only where json is not installed"),
        ({"engine": "<1"}, "only where engine is <1"),
        ({"platforms": ("rocm",), "missing": ("json",)}, "only where json is not installed and platform is rocm"),
    ],
)
def test_a_condition_that_does_not_hold_is_named(engine, registry, patch, run, condition, because):
    patches = registry(engine("1.0"), patch(when=Condition(**condition)))
    [decision] = patches.apply("build", run(fp8=False, optimizer={"name": "muon"}))
    assert (decision.status, decision.because) == ("not needed", because)
    assert loss() == 2
    assert patches.record()[0]["because"] == because


@pytest.mark.parametrize(
    "condition",
    [
        {"platforms": ("cpu", "rocm"), "stages": ("pretrain",), "engine": ">=1"},
        {"config": {"fp8": "hybrid", "optimizer.name": {"adam", "sgd"}, "moe.experts": None}},
        {"present": ("json",), "missing": ("no_such_module",)},
    ],
)
def test_a_condition_that_holds(engine, registry, patch, run, condition):
    registry(engine("1.0"), patch(when=Condition(**condition))).apply(
        "build", run(fp8="hybrid", optimizer={"name": "sgd"})
    )
    assert loss() == 12


# --- targets


def test_static_and_class_methods_stay_what_they_are(engine, registry, patch, run):
    engine("1.0")
    registry(
        "1.0",
        patch("toy.model:Model.double", lambda original: lambda x: original(x) + 1, name="static"),
        patch("toy.model:Model.make", lambda original: lambda cls, width=5: original(cls, width), name="class"),
        patch("toy.model:Model.size", lambda original: property(lambda self: original.fget(self) + 1), name="property"),
        patch("toy.model:Model.forward", lambda original: lambda self, x: -original(self, x), name="method"),
        patch("toy.model:Model.name", lambda original: original.upper(), name="value"),
    ).apply("build", run())
    model = importlib.import_module("toy.model").Model.make()
    assert (model.double(2), model.width, model.size, model.forward(2), model.name) == (5, 5, 6, -10, "TOY")


def test_undoing_a_patch_of_an_inherited_method_leaves_no_trace(engine, registry, patch, run):
    engine("1.0")
    fine = patch("toy.model:Model.describe", lambda original: lambda self: "new", name="a", set="s", required=False)
    bad = patch("toy.model:nothing", name="b", set="s", required=False)
    registry("1.0", fine, bad).apply("build", run())
    module = importlib.import_module("toy.model")
    assert module.Model(1).describe() == "base"
    assert "describe" not in vars(module.Model)


def test_two_patches_on_one_target_build_on_each_other(engine, registry, patch, run, marks):
    twice = patch(name="toy.double", replacement=lambda original: lambda *args: original(*args) * 2, fingerprints=marks)
    marks.write_text(marks.read_text().replace("toy.ten", "toy.double"))
    decisions = registry(engine("1.0"), patch(), twice).apply("build", run())
    assert [decision.status for decision in decisions] == ["applied", "applied"]
    assert loss() == 24


def test_phases_come_before_registration(engine, registry, patch, run):
    twice = patch(name="toy.double", phase="import", replacement=lambda original: lambda *args: original(*args) * 2)
    patches = registry(engine("1.0"), patch(), twice)
    for phase in ("import", "build"):
        patches.apply(phase, run())
    assert loss() == 14


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("toy.lost:cross_entropy", "there is no module toy.lost"),
        ("lost.loss:cross_entropy", "there is no module lost"),
        ("toy.model:Model.foward", "class Model has no foward; near names: forward"),
        ("toy.broken:anything", "RuntimeError: no driver (broken.py:2)"),
    ],
)
def test_a_target_that_cannot_be_found(engine, registry, patch, run, target, message):
    with pytest.raises(EnvironmentFault) as failure:
        registry(engine("1.0"), patch(target)).apply("build", run())
    assert message in str(failure.value)


def test_all_failures_of_a_phase_come_at_once(engine, registry, patch, run):
    patches = registry(engine("1.0"), patch("toy.lost:a"), patch("toy.model:b", name="toy.other"))
    with pytest.raises(EnvironmentFault, match="2 required patches of backend toy cannot be applied") as failure:
        patches.apply("build", run())
    assert "toy.ten (toy.lost:a)" in str(failure.value)
    assert "toy.other (toy.model:b)" in str(failure.value)


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (lambda original: None, "its replacement function returned nothing"),
        (lambda original: 1 / 0, "ZeroDivisionError: division by zero (test_registry.py:"),
        ("toy.model:no_such", "AttributeError: module 'toy.model' has no attribute 'no_such'"),
    ],
)
def test_a_replacement_that_fails_changes_nothing(engine, registry, patch, run, replacement, message):
    patches = registry(engine("1.0"), patch(replacement=replacement, required=False))
    [decision] = patches.apply("build", run())
    assert decision.status == "skipped"
    assert message in decision.because
    assert loss() == 2


# --- sets


def test_a_set_is_applied_as_a_whole_or_not_at_all(engine, registry, patch, run):
    patches = registry(
        engine("1.0"),
        patch(name="one", set="cpu"),
        patch("toy.train:pretrain", name="alone"),
        patch("toy.model:Model.forward", name="two", set="cpu"),
        patch("toy.model:Model.backward", name="three", set="cpu"),
    )
    before = importlib.import_module("toy.model").Model.forward
    with pytest.raises(EnvironmentFault) as failure:
        patches.apply("build", run())
    assert "one (toy.loss:cross_entropy): belongs to the set cpu, of which three cannot be applied" in str(
        failure.value
    )
    assert loss() == 2
    assert importlib.import_module("toy.model").Model.forward is before
    assert {row["name"]: row["status"] for row in patches.record()} == {
        "one": "failed",
        "alone": "applied",
        "two": "failed",
        "three": "failed",
    }


def test_a_set_whose_versions_do_not_fit_is_left_out_as_a_whole(engine, registry, patch, run):
    patches = registry(
        engine("1.0"),
        patch(name="one", set="s", required=False),
        patch("toy.model:Model.forward", name="two", set="s", required=False, engine_versions=">=1.1"),
    )
    assert [decision.status for decision in patches.apply("build", run())] == ["skipped", "skipped"]
    assert loss() == 2


def test_members_that_are_not_needed_do_not_hold_up_their_set(engine, registry, patch, run):
    patches = registry(
        engine("1.0"),
        patch(name="one", set="s"),
        patch("toy.model:gone", name="two", set="s", when=Condition(missing=("json",))),
    )
    assert [decision.status for decision in patches.apply("build", run())] == ["applied", "not needed"]
    assert loss() == 12


def test_a_set_that_was_rolled_back_can_be_applied_later(engine, registry, patch, run):
    version = engine("1.0")
    one = patch(name="one", set="s", required=False)
    registry(version, one, patch("toy.model:gone", name="two", set="s", required=False)).apply("build", run())
    registry(version, one).apply("build", run())
    assert loss() == 12


# --- aliases


def initialize_on_cpu(original):
    return lambda: "cpu"


def test_copies_that_are_named_are_replaced_too(engine, registry, patch, run):
    engine("1.0")
    train = importlib.import_module("toy.train")
    cpu = patch("toy.model:initialize", initialize_on_cpu, aliases=("toy.train:initialize", "toy.never:initialize"))
    [decision] = registry("1.0", cpu).apply("build", run())
    assert train.pretrain() == "cpu"
    assert "still held" not in decision.because
    assert "toy.never" not in sys.modules


def test_copies_that_nobody_named_are_reported(engine, registry, patch, run):
    engine("1.0")
    importlib.import_module("toy.train")
    [decision] = registry("1.0", patch("toy.model:initialize", initialize_on_cpu)).apply("build", run())
    assert decision.because.endswith("; the original is still held by toy.train:initialize")


def test_an_alias_that_holds_something_else_is_drift(engine, registry, patch, run):
    engine("1.0")
    importlib.import_module("toy.train").initialize = print
    cpu = patch("toy.model:initialize", initialize_on_cpu, aliases=("toy.train:initialize",))
    with pytest.raises(EnvironmentFault, match="initialize does not hold the same object as its target"):
        registry("1.0", cpu).apply("build", run())
    assert call("toy.model:initialize") == "cuda"


def test_a_second_patch_reaches_copies_that_the_first_one_left(engine, registry, patch, run):
    engine("1.0")
    train = importlib.import_module("toy.train")
    first = patch("toy.model:initialize", initialize_on_cpu, name="first")
    second = patch(
        "toy.model:initialize",
        lambda original: lambda: original() + "!",
        name="second",
        aliases=("toy.train:initialize",),
    )
    registry("1.0", first, second).apply("build", run())
    assert train.pretrain() == "cpu!"


# --- mistakes of plugins


def test_mistakes_are_named_all_at_once(registry, patch):
    with pytest.raises(EnvironmentFault) as failure:
        registry(
            "1.0",
            patch(name="a", target="toy.loss"),
            patch(name="a", set="s", phase="import"),
            patch(name="b", set="s", engine_versions="1.x"),
        )
    assert str(failure.value).splitlines() == [
        "two patches are named a",
        "patch a: 'toy.loss' is not of the form module:attribute",
        "patch b: '1.x' is not a range of versions",
        "the patches of set s have several phases",
    ]
