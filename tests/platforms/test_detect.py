from __future__ import annotations

import pytest

from primus_core.errors import EnvironmentFault, UserError
from primus_core.platforms import cpu
from primus_core.platforms.detect import current

PLATFORMS = """
    def some(): return (Device(name="Toy", arch="toy1"),)
    def none(): return ()
    def fail(): raise OSError("no such bus")

    @hookimpl
    def primus_platforms():
        yield Platform(name="toy", summary="toys", detect=f"{{__name__}}:{}", rank=99, backend="gloo")
"""


def test_the_processor_is_always_there():
    (device,) = cpu.detect()
    assert device.name and device.arch and device.memory is not None and device.memory > 2**28


def test_the_processors_name_comes_from_the_kernel(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\n")
    assert cpu.detect(tmp_path)[0].name == "AMD EPYC 9575F 64-Core Processor"


def test_the_highest_rank_that_finds_devices_wins(site):
    site.install("primus-toy", PLATFORMS.format("some"))
    platform, (device,) = current(site.load(), {})
    assert (platform.name, device.arch) == ("toy", "toy1")


def test_a_platform_without_devices_is_passed_over(site):
    site.install("primus-toy", PLATFORMS.format("none"))
    assert current(site.load(), {})[0].name != "toy"


def test_one_can_be_forced_even_without_devices(site):
    site.install("primus-toy", PLATFORMS.format("none"))
    plugins = site.load()
    assert current(plugins, {"PRIMUS_PLATFORM": "cpu"})[0].name == "cpu"
    platform, devices = current(plugins, {"PRIMUS_PLATFORM": "toy"})
    assert (platform.name, devices) == ("toy", ())
    with pytest.raises(UserError, match=r"unknown platform 'cpuu'.*did you mean 'cpu'"):
        current(plugins, {"PRIMUS_PLATFORM": "cpuu"})


@pytest.mark.parametrize(("function", "reason"), [("fail", "OSError: no such bus"), ("nothing", "AttributeError")])
def test_a_detection_that_fails_names_its_plugin(site, function, reason):
    site.install("primus-toy", PLATFORMS.format(function))
    with pytest.raises(EnvironmentFault, match=rf"plugin 'toy' \(primus-toy 1.0\).*{reason}"):
        current(site.load(), {})
