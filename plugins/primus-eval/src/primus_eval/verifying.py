"""What ``primus verify`` measures on a model, and how two computations of the same logits differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from primus_core.errors import UserError
from primus_eval.loading import Loaded, is_out_of_memory, load, out_of_memory
from primus_eval.orders import CompareOrder, VerifyOrder, answer

_ROWS = 2
_WINDOW = 2048
_DECODED = 8
_TEXT = Path(__file__).with_name("text.txt")


def verify(text: str) -> str:
    order = VerifyOrder.read(text)
    loaded = load(order, tokenizer=False)
    result: dict[str, Any] = {
        "architecture": type(loaded.model).__name__,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": str(loaded.model.device),
        "vocabulary": loaded.model.config.vocab_size,
        "missing": loaded.missing,
        "extra": loaded.extra,
        "mismatched": loaded.mismatched,
    }
    if not (loaded.missing or loaded.mismatched):
        try:
            with torch.inference_mode():
                result |= _measure(loaded, order)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise out_of_memory(order) from error
            raise
    return answer(result)


def _measure(loaded: Loaded, order: VerifyOrder) -> dict[str, Any]:
    model, words = loaded.model, loaded.tokenizer
    tokens = _tokens(loaded, order)
    logits = model(tokens.to(model.device)).logits
    result: dict[str, Any] = {
        "tokens": tokens.tolist(),
        "finite": bool(torch.isfinite(logits).all()),
        "cache": _cached(model, tokens[:1].to(model.device), logits[:1]),
    }
    if order.logits:
        save_file({"logits": logits.float().cpu().contiguous()}, order.logits)
    if words is not None:
        result |= _loss(model, words, order) | {"prompt": _top(model, words, order)}
    return result


def _tokens(loaded: Loaded, order: VerifyOrder) -> torch.Tensor:
    """[rows, tokens]: text where there is a tokenizer, and random tokens of the whole vocabulary."""
    size, count = loaded.model.config.vocab_size, order.tokens
    rows = torch.randint(size, (_ROWS, count), generator=torch.Generator().manual_seed(0))
    if loaded.tokenizer is not None:
        ids = loaded.tokenizer(_text(order))["input_ids"][:count]
        rows[0, : len(ids)] = torch.tensor(ids)
    return rows


def _text(order: VerifyOrder) -> str:
    file = Path(order.text_file) if order.text_file else _TEXT
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text {file}: {error}") from error


def _loss(model: Any, words: Any, order: VerifyOrder) -> dict[str, Any]:
    """Of a text, in windows that each begin anew: nats a token, bits a byte."""
    text = _text(order)
    ids = torch.tensor(words(text)["input_ids"], device=model.device)
    if len(ids) < 2:
        raise UserError(f"--text {order.text_file}: has less than two tokens")
    total, count = 0.0, 0
    for window in ids.split(_WINDOW):
        if len(window) > 1:
            logits = model(window[None]).logits[0, :-1].float()
            total += float(F.cross_entropy(logits, window[1:], reduction="sum"))
            count += len(window) - 1
    loss = total / count
    return {
        "loss": loss,
        "guessing": math.log(model.config.vocab_size),
        "bits_per_byte": total / math.log(2) / len(text.encode()),
        "text_tokens": count,
    }


def _top(model: Any, words: Any, order: VerifyOrder) -> list[tuple[str, float]]:
    ids = words(order.prompt, return_tensors="pt")["input_ids"].to(model.device)
    chances = model(ids).logits[0, -1].float().softmax(-1).topk(min(order.top, model.config.vocab_size))
    return [
        (words.decode([token]), chance)
        for token, chance in zip(chances.indices.tolist(), chances.values.tolist(), strict=True)
    ]


def _cached(model: Any, tokens: torch.Tensor, logits: torch.Tensor) -> float | None:
    """How far logits of decoding with a cache, token by token, are from those of all tokens at once."""
    start = tokens.size(1) - _DECODED
    if start < 1:
        return None
    output = model(tokens[:, :start], use_cache=True)
    kept = [output.logits[:, -1]]
    for position in range(start, tokens.size(1) - 1):
        cache = _cache_of(output)
        if cache is None:
            return None
        output = model(tokens[:, position : position + 1], use_cache=True, **cache)
        kept.append(output.logits[:, -1])
    expected = logits[:, start - 1 : -1].float()
    return _distance(torch.stack(kept, 1).float(), expected)


def _cache_of(output: Any) -> dict[str, Any] | None:
    """Under the name that this version of transformers has for it."""
    return next(({name: output[name]} for name in ("cache", "past_key_values") if output.get(name) is not None), None)


def compare(text: str) -> str:
    order = CompareOrder.read(text)
    one, other = (load_file(file)["logits"][..., : order.vocabulary].float() for file in (order.one, order.other))
    if one.shape != other.shape:
        raise UserError(f"the logits have the shapes {[*one.shape]} and {[*other.shape]}: this is another model")
    return answer(
        {
            "difference": _distance(one, other),
            "absolute": float((one - other).abs().max()),
            "largest": float(other.abs().max()),
            "same": float((one.argmax(-1) == other.argmax(-1)).double().mean()),
        }
    )


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest logit where that is more than 1."""
    return float((one - other).abs().max() / max(1.0, float(other.abs().max())))
