"""How fast ``primus data prepare`` makes tokens, against a plain loop over the same libraries.

Run in the environment of primus-megatron:  python benchmarks/tokenize_text.py [--megabytes 20] [--vocabulary 8192]
The plain loop is the tokenizers library, one document at a time, and Megatron's IndexedDatasetBuilder. All ways take
turns in one run; the best of ``--rounds`` counts, and its ratios to the plain loop: of wall time, and of processor time
of all processes, which a busy machine disturbs less. Checks that the bytes are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics


def plain(corpus: Path, tokenizer: Path, prefix: Path) -> None:
    """The loop that one would write by hand."""
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from tokenizers import Tokenizer

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
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.filterwarnings("ignore")
    import megatron.core.datasets.indexed_dataset  # noqa: F401 - not to be timed, and not for worker processes

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
        best = dict.fromkeys(ways, (float("inf"), float("inf")))
        for number in range(args.rounds):
            for way, run in ways.items():
                prefix = folder / f"{number} {way}"
                wall, processor = time.perf_counter(), processor_seconds()
                run(corpus, folder / "tokenizer", prefix)
                spent = time.perf_counter() - wall, processor_seconds() - processor
                best[way] = tuple(map(min, best[way], spent))
                for suffix in (".bin", ".idx"):
                    same = Path(f"{prefix}{suffix}").read_bytes() == (folder / f"0 plain loop{suffix}").read_bytes()
                    assert same, f"{way}: {suffix} differs from the plain loop's"
        tokens = IndexedReader(folder / "0 plain loop").tokens_total
        print(f"{tokens:,} tokens          wall s   tokens/s  ratio   processor s  ratio")
        for way, (wall, processor) in best.items():
            ratios = [alone / own for alone, own in zip(best["plain loop"], (wall, processor), strict=True)]
            rate = tokens / wall
            print(f"{way:26} {wall:6.2f} {rate:10,.0f}  {ratios[0]:5.2f}   {processor:11.2f}  {ratios[1]:5.2f}")


def processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
