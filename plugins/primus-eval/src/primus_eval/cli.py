"""``primus verify``, ``primus eval``, ``primus chat`` and ``primus data tasks``: other processes do the work."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from primus_core import elsewhere
from primus_core.cli.context import State, pass_state
from primus_core.cli.text import columns
from primus_core.convert.order import Forward
from primus_core.errors import EnvironmentFault, ExitCode, UserError
from primus_core.plugins.records import Converter
from primus_eval import folder, orders

OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 5e-3}
_COMMON = ("tokenizer", "trust", "dtype", "device")
_SHOWN = 20


def _model_options(dtype: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What all commands ask about a model."""
    options = (
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="The tokenizer, if not beside the model.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(orders.DTYPES),
            default=dtype,
            help=f"To compute in.  [default: {dtype or 'as the weights are'}]",
        ),
        click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1.  [default: cuda where there is one]"),
        click.option("--trust-remote-code", "trust", is_flag=True, help="Run code of others that the model brings."),
    )

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _model(state: State, model: Path, tokenizer: Path | None, trust: bool, **given: Any) -> dict[str, Any]:
    """What every order says of the model, once its folder was looked at."""
    _need("torch", "transformers", "safetensors", extra="")
    config = folder.check(model)
    return {
        "model": str(model.absolute()),
        "tokenizer": str((tokenizer or model).absolute()),
        "trust": folder.trusted(model, config, state.plugins, trust),
        **given,
    }


def _need(*modules: str, extra: str) -> None:
    if absent := [name for name in modules if importlib.util.find_spec(name) is None]:
        names = ", ".join(name.replace("_", "-") for name in absent)
        raise EnvironmentFault(
            f"{names} {'is' if len(absent) == 1 else 'are'} not installed: pip install 'primus-eval{extra}'"
        )


def _work(function: str, order: Any, environ: Mapping[str, str], who: str, *, shown: bool = False) -> dict[str, Any]:
    text = elsewhere.call(f"primus_eval.{function}", order.text(), environ, who=who, shown=shown)
    result: dict[str, Any] = json.loads(text)
    return result


# --- verify -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path), metavar="CHECKPOINT", help="What it was converted from.")
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For the loss.  [default: an English one]",
)
@click.option(
    "--prompt", default="The capital of France is", show_default=True, help="To show the likeliest tokens of."
)
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many of them.")
@click.option(
    "--tokens", type=click.IntRange(16), default=128, show_default=True, help="That logits are compared on, twice."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="For logits, relative to the largest.  [default: 1e-05 in float32]",
)
@click.option("--max-loss", type=float, metavar="NATS", help="Fail if the loss of the text is larger.")
@click.option("--json", "as_json", is_flag=True, help="All that was measured, as JSON.")
@_model_options("float32")
@pass_state
def verify(
    state: State,
    /,
    model: Path,
    against: Path | None,
    text_file: Path | None,
    tolerance: float | None,
    max_loss: float | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Whether MODEL, a folder in Hugging Face's format, computes what was trained.

    Loads it and counts weights that are missing, extra or of another shape; measures the loss of a text; shows what
    comes after a prompt; decodes with its cache. With --against also compares logits with those that the engine's own
    model computes from its checkpoint, or with another folder in Hugging Face's format. Exit code 1 if something is
    wrong.
    """
    allowed = bool(given["trust"])
    common = _model(state, model, **{name: given.pop(name) for name in _COMMON})
    tokenizer = Path(common["tokenizer"])
    limit = TOLERANCES[common["dtype"]] if tolerance is None else tolerance
    engine = _engine(state, against) if against is not None else None
    with tempfile.TemporaryDirectory(prefix="primus-verify-") as name:
        ours, theirs = (str(Path(name) / f"{each}.safetensors") for each in ("model", "against"))
        order = orders.VerifyOrder(
            **common,
            text_file=str(text_file.absolute()) if text_file else None,
            logits=ours if against else None,
            **given,
        )
        found = _work("verifying:verify", order, state.environ, f"verifying {model}")
        if against is not None and found.get("tokens"):
            if engine is None:
                other = _model(state, against, tokenizer, allowed, dtype=common["dtype"], device=common["device"])
                fields = {"text_file": order.text_file, "prompt": order.prompt, "top": 1, "tokens": order.tokens}
                second = orders.VerifyOrder(**other, **fields, logits=theirs)
                _work("verifying:verify", second, state.environ, f"verifying {against}")
            else:
                converter, place = engine
                forward = Forward(source=place.absolute(), tokens=found["tokens"], output=Path(theirs))
                elsewhere.call(str(converter.logits), forward.text(), state.environ, who=f"the model of {place}")
            compare = orders.CompareOrder(one=ours, other=theirs, vocabulary=found["vocabulary"])
            found["against"] = _work("verifying:compare", compare, state.environ, "comparing logits")
    problems = list(_problems(found, limit, max_loss))
    found.pop("tokens", None)
    if as_json:
        click.echo(json.dumps(found | {"problems": problems}, indent=2))
    else:
        click.echo("\n".join(_lines(model, against, found)))
    for problem in problems:
        click.echo(f"primus: {problem}", err=True)
    return ExitCode.TRAINING_FAILED if problems else ExitCode.DONE


def _engine(state: State, checkpoint: Path) -> tuple[Converter, Path] | None:
    """Whose checkpoint it is, and where exactly it lies; None for a folder in Hugging Face's format."""
    if not checkpoint.exists():
        raise UserError(f"--against {checkpoint}: no such file or folder")
    unable = []
    for name, entry in state.plugins.named("primus_backends").items():
        converter = entry.record.converter
        if converter is None or (place := entry.load(converter.find)(checkpoint)) is None:
            continue
        if converter.logits is None:
            unable.append(name)
            continue
        return converter, place
    if unable:
        raise UserError(
            f"--against {checkpoint}: {unable[0]} cannot compute logits for this; convert it to hf and name that"
        )
    if not (checkpoint / "config.json").is_file():
        raise UserError(f"--against {checkpoint}: neither a checkpoint of a backend, nor a folder with config.json")
    return None


def _problems(found: Mapping[str, Any], limit: float, max_loss: float | None) -> Iterator[str]:
    counts = [found[name] for name in ("missing", "extra", "mismatched")]
    for kind, names in zip(("missing", "extra", "shape"), counts, strict=True):
        yield from (f"{kind}: {name}" for name in names[:_SHOWN])
    if not found.get("finite", True):
        yield "some logits are not finite"
    if (distance := found.get("cache")) is not None and not distance <= 10 * limit:
        yield f"decoding with the cache gives other logits: they differ by {distance:.1e}"
    if max_loss is not None and not found.get("loss", float("nan")) <= max_loss:
        yield (
            f"the loss is {found['loss']:.3f}, more than {max_loss}"
            if "loss" in found
            else "no loss: there is no tokenizer"
        )
    if (against := found.get("against")) and not against["difference"] <= limit:
        yield f"logits differ by {against['difference']:.1e} of the largest, more than {limit:.0e}"


def _lines(model: Path, against: Path | None, found: Mapping[str, Any]) -> Iterator[str]:
    computed = f"in {found['dtype']} on {found['device']}"
    yield f"{model}: {found['architecture']}, {found['parameters']:,} parameters, {computed}"
    missing, extra, mismatched = (len(found[name]) for name in ("missing", "extra", "mismatched"))
    yield f"weights: {missing} missing, {extra} extra, {mismatched} shape mismatches"
    if "loss" in found:
        than = "" if found["loss"] < found["guessing"] else ": no better than guessing"
        yield (
            f"loss: {found['loss']:.4f} a token, {found['bits_per_byte']:.3f} bits a byte, "
            f"on {found['text_tokens']:,} tokens; guessing gives {found['guessing']:.2f}{than}"
        )
        shown = ", ".join(f"{token!r} {chance:.1%}" for token, chance in found["prompt"])
        yield f"likeliest next: {shown}"
    elif "tokens" in found or "finite" in found:
        yield "loss: not measured, since there is no tokenizer; name one: --tokenizer DIR"
    if found.get("cache") is not None:
        yield f"cache: decoding token by token differs by {found['cache']:.1e}"
    if result := found.get("against"):
        yield (
            f"against {against}: logits differ by {result['absolute']:.1e} at most, of {result['largest']:.1f}; "
            f"the same likeliest token at {result['same']:.2%}"
        )


# --- eval ---------------------------------------------------------------------------------------------------------


def _tasks_argument(ctx: click.Context, param: click.Parameter, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value or ()
    return [name for text in texts for name in text.replace(",", " ").split()]


def _batch(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value != "auto" and not (value.isdecimal() and int(value)):
        raise click.BadParameter(f"{value!r} is neither a number nor auto")
    return value


_INCLUDE = click.option(
    "--include", multiple=True, type=click.Path(path_type=Path), metavar="DIR", help="A folder with tasks of one's own."
)


@click.command("eval")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--tasks",
    callback=_tasks_argument,
    required=True,
    metavar="TASK,TASK",
    help="Names of tasks or groups, or files that describe one.",
)
@_INCLUDE
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Where primus data tasks laid data sets down."
)
@click.option(
    "--batch-size", default="auto", show_default=True, callback=_batch, help="A number, or auto: the largest that fits."
)
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Documents of each task; below 1 a part of them.",
)
@click.option(
    "--max-length", type=click.IntRange(2), metavar="TOKENS", help="Longest input.  [default: the model's context]"
)
@click.option("--num-fewshot", type=click.IntRange(0), metavar="N", help="Examples in front.  [default: the task's]")
@click.option("--apply-chat-template", is_flag=True, help="Ask as in a conversation.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of examples and of sampling.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write results.json there.")
@click.option("--log-samples", is_flag=True, help="And what the model was asked and said.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_model_options(None)
@pass_state
def evaluate(
    state: State,
    /,
    model: Path,
    tasks: list[str],
    include: tuple[Path, ...],
    data: Path | None,
    output: Path | None,
    log_samples: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Score MODEL on tasks of lm-evaluation-harness."""
    common = _model(state, model, **{name: given.pop(name) for name in _COMMON})
    _need("lm_eval", "datasets", "accelerate", extra="[tasks]")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder; primus data tasks --output {data} makes it")
    if log_samples and output is None:
        raise UserError("--log-samples: say where, with --output DIR")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    order = orders.EvalOrder(
        **common,
        tasks=tasks,
        include=[str(path.absolute()) for path in include],
        data=str(data.absolute()) if data else None,
        samples=str(output.absolute()) if output and log_samples else None,
        **given,
    )
    environ = {**state.environ, **OFFLINE} if data else state.environ
    found = _work("evaluating:evaluate", order, environ, f"evaluating {model}", shown=True)
    result = {"model": str(model), "tasks": tasks, "limit": given["limit"]} | found
    if output is not None:
        (output / "results.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(result, indent=2) if as_json else _table(found))
    if found["cut"]:
        click.echo(
            f"{found['cut']} inputs were longer than {found['max_length']} tokens and were cut at their beginning; "
            "--max-length takes more",
            err=True,
        )
    return ExitCode.DONE


def _table(found: Mapping[str, Any]) -> str:
    rows = [("task", "metric", "value", "", "few-shot", "documents")]
    for task, values in found["results"].items():
        shots, counts = found.get("n-shot", {}).get(task, ""), found.get("n-samples", {}).get(task, {})
        for key, value in values.items():
            metric, _, kept = key.partition(",")
            if not isinstance(value, float | int) or metric.endswith("_stderr") or not kept:
                continue
            error = values.get(f"{metric}_stderr,{kept}")
            spread = f"± {error:.4f}" if isinstance(error, float) else ""
            name = metric if kept == "none" else f"{metric} ({kept})"
            rows.append((task, name, f"{value:.4f}", spread, str(shots), str(counts.get("effective", ""))))
    return columns(rows)


# --- chat ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="What stands before the conversation.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Longest answer.")
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0: always the likeliest token."
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Sample from this much of all chances.",
)
@click.option(
    "--top-k", type=click.IntRange(0), default=0, show_default=True, help="Sample from so many tokens; 0: all."
)
@click.option("--seed", type=int, help="Of sampling.")
@click.option("--json", is_flag=True, help="With input from a pipe: a JSON object a line.")
@_model_options(None)
@pass_state
def chat(state: State, /, model: Path, **given: Any) -> int:
    """Talk to MODEL.

    With input from a pipe each line is a question of its own and gets one line, in which \\n stands for a new line.
    """
    common = _model(state, model, **{name: given.pop(name) for name in _COMMON})
    order = orders.ChatOrder(**common, **given)
    _work("chatting:chat", order, state.environ, f"talking to {model}", shown=True)
    return ExitCode.DONE


# --- data sets of tasks -------------------------------------------------------------------------------------------


@click.command()
@click.argument("names", nargs=-1, callback=_tasks_argument, metavar="[TASK]...")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="For primus eval --data.")
@_INCLUDE
@pass_state
def tasks(state: State, /, names: list[str], output: Path, include: tuple[Path, ...]) -> int:
    """Lay the data sets of tasks down in DIR, so that primus eval needs no network.

    Without a TASK those of the Zebra-Llama guide: arc_easy, arc_challenge, hellaswag, mmlu, openbookqa, piqa, race,
    winogrande.
    """
    _need("lm_eval", "datasets", extra="[tasks]")
    order = orders.TasksOrder(
        tasks=names or list(orders.GUIDE_TASKS),
        include=[str(path.absolute()) for path in include],
        output=str(output.absolute()),
    )
    found = _work("tasks:lay_down", order, state.environ, "laying data sets down", shown=True)
    for name, place in found["sets"].items():
        click.echo(f"{name}: {os.path.relpath(place)}")
    click.echo(f"{found['tasks']} tasks; evaluate with --data {output}")
    return ExitCode.DONE
