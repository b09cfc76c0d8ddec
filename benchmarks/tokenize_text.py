"""How fast ``primus data prepare`` makes tokens, against a plain loop over the same libraries.

Run in the environment of primus-megatron:  python benchmarks/tokenize_text.py [--megabytes 40] [--vocabulary 8192]
Prints seconds, tokens/s and the ratio to the plain loop (the tokenizers library, one document at a time,
and Megatron's IndexedDatasetBuilder), all in this one run, and checks that the bytes are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def plain(corpus: Path, tokenizer: Path, prefix: Path) -> None:
    """The loop that one would write by hand."""
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            tokens = [*encode(json.loads(line)["text"]).ids, 0]
            builder.add_document(torch.tensor(tokens), [len(tokens)])
    builder.finalize(f"{prefix}.idx")


def with_workers(workers: int) -> Callable[[Path, Path, Path], None]:
    def run(corpus: Path, tokenizer: Path, prefix: Path) -> None:
        from primus_core.data.prepare import Options, prepare
        from primus_core.data.sources import describe
        from primus_core.data.tokenizer import find_tokenizer

        found = find_tokenizer(str(tokenizer))
        prepare([describe(corpus, "text")], Options(output=prefix, tokenizer=found, workers=workers))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--vocabulary", type=int, default=8192)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    from primus_core.data.indexed import IndexedReader
    from primus_core.data.tokenizer import train_tokenizer

    texts = [text for _, text in sorted(topics.items())]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus.jsonl"
        with corpus.open("w", encoding="utf-8") as lines:
            while lines.tell() < args.megabytes << 20:
                lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        train_tokenizer(texts, args.vocabulary, folder / "tokenizer")
        ways = {"plain loop": plain, "primus, 1 worker": with_workers(1), "primus, 2 workers": with_workers(2)}
        reference = 0.0
        for number, (way, run) in enumerate(ways.items()):
            prefix = folder / f"out{number}"
            started = time.perf_counter()
            run(corpus, folder / "tokenizer", prefix)
            seconds = time.perf_counter() - started
            reference = reference or seconds
            tokens = IndexedReader(prefix).tokens_total
            print(f"{way:18} {seconds:6.1f} s  {tokens / seconds:12,.0f} tokens/s  ratio {reference / seconds:.2f}")
            for suffix in (".bin", ".idx"):
                same = (folder / f"out0{suffix}").read_bytes() == (folder / f"out{number}{suffix}").read_bytes()
                assert same, f"{way}: {suffix} differs from the plain loop's"


if __name__ == "__main__":
    main()
