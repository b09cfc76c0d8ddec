"""What is installed, against ``importlib.metadata``."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile

import pytest

from primus_core.plugins import distributions


def test_this_environment_reads_as_the_standard_library_reads_it():
    ours = {(each.name, each.version, tuple(each.requires)) for each in distributions.installed()}
    theirs = {
        (each.metadata["Name"], each.version, tuple(each.metadata.get_all("Requires-Dist") or ()))
        for each in importlib.metadata.distributions()
    }
    assert ours == theirs


def test_entry_points_of_a_group_are_those_of_the_standard_library():
    ours = {(each.name, entry) for each in distributions.installed() for entry in each.entry_points("console_scripts")}
    theirs = {
        (each.dist.name, (each.name, each.value)) for each in importlib.metadata.entry_points(group="console_scripts")
    }
    assert ours == theirs


@pytest.mark.parametrize("name", ["pytest", "PyYAML", "pyyaml", "primus_core", "Primus.Core"])
def test_versions_are_found_by_any_spelling(name):
    assert distributions.version(name) == importlib.metadata.version(name)


def test_the_version_of_what_is_not_there_is_none():
    assert distributions.version("pyt") is None
    assert distributions.version("primus-nowhere") is None


def test_archives_and_what_distutils_left_count_too(tmp_path, monkeypatch):
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed_one-3.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed-one\nVersion: 3.1\n")
    (tmp_path / "old_one-0.4.egg-info").write_text("Metadata-Version: 1.1\nName: old-one\nVersion: 0.4\n\ntext\n")
    monkeypatch.setattr(sys, "path", [str(archive), str(tmp_path), str(tmp_path / "absent")])
    assert {(each.name, each.version) for each in distributions.installed()} == {
        ("packed-one", "3.1"),
        ("old-one", "0.4"),
    }
    assert distributions.version("packed_one") == "3.1"


@pytest.mark.parametrize("value", ["json", "json:dumps", "json.decoder:JSONDecoder.decode", "json:dumps [extra]"])
def test_values_of_entry_points_load_as_those_of_the_standard_library(value):
    theirs = importlib.metadata.EntryPoint("x", value, "group")
    assert distributions.load_entry_point(value) is theirs.load()
