"""A loop that reports, saves and goes on, and fails where it is told to."""

import json
import os
import signal
import time


def train(run):
    config = run.config
    steps = config["steps"]
    done = load(run) if config["resume"] or run.recovery.restarts else 0
    if done:
        run.note(f"goes on after step {done}")
    run.expect(steps, done)
    reduce = make_reduce(run) if config["collective"] else lambda value: value
    print("\n".join(f"noise {line}" for line in range(config["noise"])))
    print("environ", json.dumps(environment(config)))
    run.note("training starts")
    for step in range(done + 1, steps + 1):
        run.enter("forward", step)
        if step in run.recovery.skip_steps:
            run.note(f"step {step} is left out")
            continue
        time.sleep(config["seconds"])
        loss = 4.0 / step
        bad = run.rank == config["bad_rank"] and step == config["bad_step"]
        if bad and not (config["once"] and run.recovery.restarts):
            loss = misbehave(config["bad_way"], config["message"])
        loss = reduce(loss)
        run.report_step(
            step, {"loss": loss, "lr": 1e-4, "tokens": 32 * step, "step_time": 0.01, "tokens_per_s": 3200.0}
        )
        done = step
        stop = config["save_interval"] and reduce(float(run.stop_requested)) > 0
        if stop or (config["save_interval"] and step % config["save_interval"] == 0):
            save(run, step)
        if stop:
            break
    if done == steps:
        run.report_eval(steps, {"loss": 1.5})
        if not (config["save_interval"] and steps % config["save_interval"] == 0):
            save(run, steps)
    if config["collective"]:
        import torch.distributed as dist

        dist.destroy_process_group()


def save(run, step):
    run.enter("save", step)
    path = run.folder / "checkpoints" / f"step-{step}"
    if run.is_reporter:
        new = path.with_name(f".{path.name}.new")
        new.mkdir(parents=True, exist_ok=True)
        (new / "state.json").write_text(json.dumps({"step": step}))
        new.rename(path)
    run.checkpoint_saved(step, path)


def load(run):
    found = (run.folder / "checkpoints").glob("step-*")
    return max((json.loads((path / "state.json").read_text())["step"] for path in found), default=0)


def environment(config):
    names = ("FROM_FILE", "BY_HAND", "TOY_DEFAULT", "OMP_NUM_THREADS")
    found = {name: os.environ[name] for name in names if name in os.environ}
    secrets = (config["api_key"], os.environ.get("TOY_TOKEN", ""), os.environ.get("SHELL_API_KEY", ""))
    return found | {"secrets arrived": all(secret.startswith("sekret-") for secret in secrets)}


def misbehave(way, message):
    """The loss of a bad step, where it does not end here."""
    if way == "raise":
        raise ValueError(message)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "exit":
        os._exit(7)
    if way == "nan":
        return float("nan")
    if way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "environment":
        from primus_core.errors import EnvironmentFault

        raise EnvironmentFault(message)
    time.sleep(1000)
    return 0.0


def make_reduce(run):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def reduce(value):
        total = torch.tensor(value)
        dist.all_reduce(total)
        return total.item() / run.place.world_size

    return reduce
