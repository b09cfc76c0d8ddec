"""``primus eval`` in its own process: a model and lm-eval-harness."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM

from primus_eval.loading import is_out_of_memory, load, out_of_memory, require_complete
from primus_eval.orders import EvalOrder
from primus_eval.tasks import Tasks, from_folder, names_of

_CUT = "exceeds model's maximum length"


class _Cut(logging.Filter):
    """Counts samples that were too long, which the harness says of each one, and keeps other advice to itself."""

    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += _CUT in record.getMessage()
        return record.levelno >= logging.ERROR


def evaluate(text: str) -> str:
    order = EvalOrder.read(text)
    os.dup2(2, 1)  # what libraries print is no result
    sys.stdout = sys.stderr
    names, folders = names_of(order.tasks, order.include)
    tasks = Tasks(folders)
    wanted = tasks.load(names, from_folder(order.data, tasks.folders))
    loaded = load(order)
    require_complete(loaded, order.model)
    cut = _Cut()
    for name in ("lm_eval.models.huggingface", "lm_eval.models.utils"):
        logging.getLogger(name).addFilter(cut)
        logging.getLogger(name).setLevel(logging.WARNING)
    evaluator.get_git_commit_hash = lambda: None  # of the folder that one happens to be in
    try:
        model = HFLM(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            backend="causal",
            batch_size=order.batch_size,
            max_length=order.max_length,
        )
        found = evaluator.simple_evaluate(
            model=model,
            tasks=wanted,
            task_manager=tasks.manager,
            num_fewshot=order.num_fewshot,
            limit=int(order.limit) if order.limit and order.limit >= 1 else order.limit,
            apply_chat_template=order.apply_chat_template,
            log_samples=order.samples is not None,
            random_seed=order.seed,
            numpy_random_seed=order.seed,
            torch_random_seed=order.seed,
            fewshot_random_seed=order.seed,
        )
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise out_of_memory(order) from error
        raise
    if order.samples:
        _write_samples(Path(order.samples), found["samples"])
    kept = ("results", "groups", "group_subtasks", "versions", "n-shot", "n-samples", "higher_is_better")
    result = {key: found[key] for key in kept if key in found}
    batch = model.batch_sizes or model.batch_size
    result |= {"cut": cut.count, "batch_size": str(batch), "max_length": model.max_length}
    return json.dumps(result, default=_number)


def _number(value: Any) -> Any:
    """What JSON has no word for: numbers of numpy, and whatever else."""
    return value.item() if hasattr(value, "item") else str(value)


def _write_samples(folder: Path, samples: dict[str, list[Any]]) -> None:
    for task, lines in samples.items():
        text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
        (folder / f"samples_{task}.jsonl").write_text(text, encoding="utf-8")
