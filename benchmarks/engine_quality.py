"""What rounded weights do to the perplexity of real text, by the engine that computes with them.

python benchmarks/engine_quality.py --engines-home DIR --model DIR --text dialogues.jsonl [--work DIR]

Projects and environments are those of benchmarks/engines.py, which makes them; the text is that of `make demo`, film dialogues
(docs/demo/prepare.py). Every token is scored behind those before it in its part; parts are of equal length.
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
PART, ROWS = 128, 8
TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
rows = json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=getattr(torch, sys.argv[3])).eval()
scores = []
with torch.inference_mode():
    for row in rows:
        tokens = torch.tensor([row])
        likely = model(tokens).logits[0, :-1].float().log_softmax(-1)
        scores += likely.gather(1, tokens[0, 1:, None])[:, 0].tolist()
print(json.dumps(scores))
"""
ORT = """
import json, sys
from pathlib import Path
import numpy as np
project, count = Path(sys.argv[1]), int(sys.argv[4])
sys.path.insert(0, str(project))
from engine import SessionRows, read_decoder
rows, scores = json.load(sys.stdin), []
decoder = read_decoder(project / "weights")
session = SessionRows(project / "weights" / decoder["filename"], head_size=decoder["head_size"], count=count, context=256, threads=1)
for first in range(0, len(rows), count):
    part = rows[first : first + count]
    for place in range(len(part[0]) - 1):
        logits = session.step([row[place] for row in part], [place] * len(part)).astype(np.float64)
        top = logits.max(-1, keepdims=True)
        likely = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        scores += [float(likely[n, row[place + 1]]) for n, row in enumerate(part)]
print(json.dumps(scores))
"""
OPENVINO = """
import json, sys
from pathlib import Path
import numpy as np, openvino
project = Path(sys.argv[1])
rows, scores = json.load(sys.stdin), []
hint = {"INFERENCE_PRECISION_HINT": "f32"} if sys.argv[3] == "float32" else {}
compiled = openvino.Core().compile_model(project / "weights" / "openvino_model.xml", "CPU", hint | {"INFERENCE_NUM_THREADS": 1})
asked = compiled.create_infer_request()
for row in rows:
    asked.reset_state()
    tokens = np.array([row], np.int64)
    given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    names = {name for value in compiled.inputs for name in value.names}
    if "position_ids" in names:
        given["position_ids"] = np.arange(len(row))[None]
    if "beam_idx" in names:
        given["beam_idx"] = np.zeros(1, np.int32)
    logits = asked.infer(given)[0][0, :-1].astype(np.float64)
    top = logits.max(-1, keepdims=True)
    likely = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    scores += likely[np.arange(len(row) - 1), row[1:]].tolist()
print(json.dumps(scores))
"""
SCORERS = {"transformers": TRANSFORMERS, "onnxruntime-genai": ORT, "openvino-genai": OPENVINO}


def read_rows(model: Path, text: Path, count: int) -> list[list[int]]:
    """The first ``count`` parts of the conversations, one after the other."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [json.loads(line)["messages"] for line in text.read_text(encoding="utf-8").splitlines()]
    tokens = tokenizer("\n".join(turn["content"] for chat in chats for turn in chat))["input_ids"]
    return [tokens[start : start + PART] for start in range(0, len(tokens) - PART + 1, PART)][:count]


def score(engine: str, weights: str, project: Path, model: Path, home: Path, rows: list[list[int]]) -> list[float]:
    command = [str(find_python(engine, home)), "-c", SCORERS[engine], str(project), str(model), weights, str(ROWS)]
    ended = subprocess.run(command, input=json.dumps(rows), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("engines-work"))
    parser.add_argument("--parts", type=int, default=2 * ROWS)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "engines_quality.json")
    args = parser.parse_args()
    os.environ |= {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    texts, rows = read_rows(args.model, args.text, args.parts), []
    exact: list[float] = []
    about = {"command": " ".join(sys.argv[1:]), "model": args.model.name, "cpu": read_cpu()}
    about |= {"tokens": sum(map(len, texts)), "part": PART}
    for engine, (_, _, formats) in ENGINES.items():
        for weights in formats:
            project = args.work / f"smollm2-135m-{engine}-{weights}"
            if not project.exists() or (weights == "bfloat16" and not has_bfloat16()):
                continue
            scores = score(engine, weights, project, args.model, args.engines_home.resolve(), texts)
            exact = exact or scores
            row = {
                "engine": engine,
                "weights": weights,
                "versions": list_versions(find_python(engine, args.engines_home)),
            }
            row |= {"perplexity": perplexity(scores), "over_float32": perplexity(scores) / perplexity(exact)}
            rows.append(row)
            print(f"{engine:20}{weights:10}{row['perplexity']:9.3f}{row['over_float32'] - 1:+9.2%}", flush=True)
            args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


def perplexity(scores: list[float]) -> float:
    return math.exp(-sum(scores) / len(scores))


if __name__ == "__main__":
    main()
