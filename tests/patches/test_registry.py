import importlib

import pytest

from primus_core.errors import EnvironmentFault


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
