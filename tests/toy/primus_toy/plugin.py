"""What the toy contributes, and an observer that leaves its traces in the log."""

from pathlib import Path

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend, EnvVar

HERE = Path(__file__).parent


@hookimpl
def primus_backends():
    yield Backend(
        name="toy",
        summary="A line that falls",
        engine="toy-engine",
        engine_versions=">=1,<2",
        trainer="primus_toy.train:train",
        schemas=HERE / "schemas",
        presets=HERE / "presets",
        install="pip install toy-engine",
    )


@hookimpl
def primus_launch_env(request):
    yield EnvVar(name="TOY_DEFAULT", value="of the plugin", origin="primus-toy")


@hookimpl
def primus_run_failed(run, error):
    print("observer saw", type(error).__name__)


@hookimpl
def primus_run_finished(run):
    print("observer saw the end")
