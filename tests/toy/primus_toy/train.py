"""A loop that reports, and fails where it is told to."""

import json
import os
import signal
import time


def train(run):
    config = run.config
    steps = config["steps"]
    run.expect(steps)
    reduce = make_reduce(run) if config["collective"] else lambda value: value
    print("\n".join(f"noise {line}" for line in range(config["noise"])))
    print("environ", json.dumps(environment(config)))
    run.note("training starts")
    for step in range(1, steps + 1):
        run.enter("forward", step)
        time.sleep(config["seconds"])
        if run.rank == config["bad_rank"] and step == config["bad_step"]:
            misbehave(config["bad_way"], config["message"])
        loss = reduce(4.0 / step)
        run.report_step(
            step, {"loss": loss, "lr": 1e-4, "tokens": 32 * step, "step_time": 0.01, "tokens_per_s": 3200.0}
        )
    run.report_eval(steps, {"loss": 1.5})
    run.enter("save", steps)
    path = run.folder / "checkpoints" / f"step-{steps}"
    if run.is_reporter:
        path.mkdir(parents=True, exist_ok=True)
    run.checkpoint_saved(steps, path)
    if config["collective"]:
        import torch.distributed as dist

        dist.destroy_process_group()


def environment(config):
    names = ("FROM_FILE", "BY_HAND", "TOY_DEFAULT", "OMP_NUM_THREADS")
    found = {name: os.environ[name] for name in names if name in os.environ}
    secrets = (config["api_key"], os.environ.get("TOY_TOKEN", ""), os.environ.get("SHELL_API_KEY", ""))
    return found | {"secrets arrived": all(secret.startswith("sekret-") for secret in secrets)}


def misbehave(way, message):
    if way == "raise":
        raise ValueError(message)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "exit":
        os._exit(7)
    if way == "environment":
        from primus_core.errors import EnvironmentFault

        raise EnvironmentFault(message)
    time.sleep(1000)


def make_reduce(run):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def reduce(value):
        total = torch.tensor(value)
        dist.all_reduce(total)
        return total / run.place.world_size

    return reduce
