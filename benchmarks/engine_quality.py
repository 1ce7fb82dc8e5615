"""What rounded weights do to the perplexity of real text, by the engine that computes with them.

python benchmarks/engine_quality.py --engines-home DIR --model DIR --text dialogues.jsonl [--work DIR]

Projects and environments are those of benchmarks/engines.py, which makes them; the text is that of `make demo`, film dialogues
(docs/demo/prepare.py). Every token is scored by the engine's own ``score``, behind those before it in its part; parts are of equal
length. What was measured before and is not measured now stays in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engines import ENGINES, find_python, has_bfloat16, list_versions, read_cpu

HERE = Path(__file__).resolve().parent
PART, PARTS = 128, 16
ALGORITHMS = {("onnxruntime-genai", "int4"): "k_quant_mixed"}
"""How 4 bits are chosen, where it was another way before."""
SCORER = """
import json, sys
from pathlib import Path
project = Path(sys.argv[1])
sys.path.insert(0, str(project))
import yaml
from engine import Engine
if __name__ == "__main__":
    config = yaml.safe_load((project / "config.yaml").read_text())
    config["serving"] |= {"max_concurrency": 1, "threads": 1}
    engine = Engine(config, project)
    scores = [score for row in json.load(sys.stdin) for score in engine.score(row)]
    memory = engine.memory_gib
    engine.close()
    print(json.dumps({"scores": scores, "memory_gib": memory}))
"""


def read_rows(model: Path, text: Path, count: int) -> list[list[int]]:
    """The first ``count`` parts of the conversations, one after the other."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [json.loads(line)["messages"] for line in text.read_text(encoding="utf-8").splitlines()]
    tokens = tokenizer("\n".join(turn["content"] for chat in chats for turn in chat))["input_ids"]
    return [tokens[start : start + PART] for start in range(0, len(tokens) - PART + 1, PART)][:count]


def score(engine: str, project: Path, home: Path, rows: list[list[int]]) -> dict:
    command = [str(find_python(engine, home)), "-c", SCORER, str(project)]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    ended = subprocess.run(command, input=json.dumps(rows), stdout=subprocess.PIPE, text=True, check=True, env=quiet)
    return json.loads(ended.stdout.splitlines()[-1])


def name_row(row: dict) -> tuple:
    return row["engine"], row["weights"], row.get("algorithm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("engines-work"))
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--weights", nargs="*", help="formats; default: all that an engine has here")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "engines_quality.json")
    args = parser.parse_args()
    home, texts = args.engines_home.resolve(), read_rows(args.model, args.text, args.parts)
    about = {"command": " ".join(sys.argv[1:]), "model": args.model.name, "cpu": read_cpu()}
    about |= {"tokens": sum(map(len, texts)), "part": PART}
    before = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    rows = before.get("rows", []) if (before.get("tokens"), before.get("part")) == (about["tokens"], PART) else []
    for engine in args.engines:
        for weights in ENGINES[engine][2]:
            project = args.work / f"smollm2-135m-{engine}-{weights}"
            if weights not in (args.weights or ENGINES[engine][2]) or not project.exists():
                continue
            if weights == "bfloat16" and not has_bfloat16():
                continue
            scored = score(engine, project, home, texts)
            row = {"engine": engine, "weights": weights, "versions": list_versions(find_python(engine, home))}
            row |= {"perplexity": round(perplexity(scored["scores"]), 4), "memory_gib": round(scored["memory_gib"], 3)}
            if (engine, weights) in ALGORITHMS:
                row["algorithm"] = ALGORITHMS[engine, weights]
            rows = [old for old in rows if name_row(old) != name_row(row)] + [row]
            exact = next((row["perplexity"] for row in rows if name_row(row)[:2] == ("transformers", "float32")), None)
            for each in rows:
                each["over_float32"] = round(each["perplexity"] / exact, 4) if exact else None
            change = f"{row['perplexity'] / exact - 1:+9.2%}" if exact else ""
            print(f"{engine:20}{weights:10}{row['perplexity']:9.3f}{change}{row['memory_gib']:7.2f} GiB", flush=True)
            args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


def perplexity(scores: list[float]) -> float:
    return math.exp(-sum(scores) / len(scores))


if __name__ == "__main__":
    main()
