"""Hold every precision against fp32 on one text: ``PYTHONPATH=tests python tests/bench/quality.py``, some minutes.

Prints a table and writes JSON; ``tests/text_quality.py`` says how it is measured and what the bundled model hides.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from text_quality import Quality, measured, windows

from dataplane.contracts.precision import WEIGHTS

_REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> int:
    """Measure, print and write the report."""
    parser = argparse.ArgumentParser()
    default_model = _REPOSITORY / "var" / "models" / "smollm2-135m-instruct"
    parser.add_argument("--model", type=Path, default=Path(os.environ.get("PAGODA_MODEL_DIR", default_model)))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--out", type=Path, default=_REPOSITORY / "var" / "bench" / "quality.json")
    arguments = parser.parse_args()
    text = windows(arguments.model, arguments.windows)
    print(
        "| weights | keys and values | perplexity | to fp32 | same likeliest | close |\n|---|---|---:|---:|---:|---:|"
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="pagoda-quality-") as folder:
        reference: Quality | None = None
        for dtype, kv_dtype in [("fp32", "fp32"), *((dtype, kv) for dtype in WEIGHTS for kv in ("fp16", "int8"))]:
            found = measured(arguments.model, Path(folder), text, dtype, kv_dtype)
            reference = reference or found
            same, close = found.agreement(reference)
            change = found.perplexity / reference.perplexity - 1
            print(
                f"| {dtype} | {kv_dtype} | {found.perplexity:.4f} | {change:+.2%} | {same:.2%} | {close:.2%} |",
                flush=True,
            )
            rows.append({
                "dtype": dtype, "kv_dtype": kv_dtype, "perplexity": found.perplexity, "to_fp32": change, "same": same,
                "close": close, "tokens": len(found.scores),
            })  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=2))
    print(f"\n{len(text)} windows; written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
