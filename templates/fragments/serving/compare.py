"""Does the engine say what the model says? `python compare.py`: its greedy tokens beside eager Transformers'."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import json
import math
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from bench_texts import Texts
from config_file import read_config
from masking import mask_messages
from sampling import Sampling
from sources import find_source
from terminal import escape_control, parse_flags
from weights_identity import list_versions

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
CONVERTING = Path(".venv-convert", "bin", "python")
"""Where weights are converted: the environment that has torch, if the serving one has not."""
EXACT = ("float32",)
"""Weights that are those of the model: whatever computes with them, the likeliest token is the same."""
TIE = 1e-4
"""Two tokens whose logits are nearer are equally likely: sums of 32 bits in another order differ by as much."""
PROMPT_TOKENS, NEW_TOKENS, PROMPTS, PLACES = 64, 64, 8, 8


def main() -> None:
    args = parse_arguments()
    texts = Texts(CONFIG, HERE, args.seed)
    prompts = [texts.prompts.encode_text(texts.draw(PROMPT_TOKENS)) for _ in range(args.prompts)]
    answers, guesses, scores = ask_engine(prompts, args.new_tokens)
    reference = ask_reference(prompts, answers)
    weights = CONFIG["serving"]["weights"]
    report = {
        "schema": 1,
        "engine": CONFIG["serving"]["engine"],
        "weights": weights,
        "exact": weights in EXACT,
        **compare_answers(answers, reference),
        "next_token_agreement": count_agreement(prompts, guesses, reference),
        **compare_scores(scores, [row["prompt_scores"] for row in reference]),
        "reference_dtype": reference[0]["dtype"],
        "prompts": len(prompts),
        "new_tokens": args.new_tokens,
        "versions": list_versions(),
    }
    args.report.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(describe(report))
    if report["exact"] and report["differences"]:
        sys.exit(f"{weights} is exact, and the answers differ: {args.report} says where. Do not serve these weights.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--new_tokens", type=int, default=NEW_TOKENS, help="of each answer")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--report", type=Path, default=HERE / "compare.json")
    args = parse_flags(parser)
    room = CONFIG["serving"]["max_context"] - PROMPT_TOKENS - 8  # a text may be a few tokens longer when read again
    if args.prompts < 1 or not 1 <= args.new_tokens <= room:
        parser.error(f"--prompts {args.prompts} --new_tokens {args.new_tokens}: one at least, and {room} tokens")
    return args


def list_places(prompt: list[int]) -> list[int]:
    """Lengths of the beginnings of a prompt after which one token is asked for."""
    return sorted({max(1, len(prompt) * (number + 1) // PLACES) for number in range(PLACES)})


def ask_engine(prompts: list[list[int]], new_tokens: int) -> tuple[list, list, list]:
    """Greedy answers; the likeliest token after beginnings of the prompts; log-probabilities of prompts, or none."""
    from engine import Engine  # takes seconds: what is wrong with a flag is said before

    batch = CONFIG["serving"]["max_concurrency"]
    with closing(Engine(CONFIG, HERE)) as engine:

        def generate(asked: list[list[int]], count: int) -> list[list[int]]:
            parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
            how = Sampling(count, ends=False)
            return [answer for part in parts for answer in engine.generate(part, [how] * len(part))]

        answers = generate(prompts, new_tokens)
        guesses = iter(generate([prompt[:place] for prompt in prompts for place in list_places(prompt)], 1))
        guessed = [[next(guesses)[0] for _ in list_places(prompt)] for prompt in prompts]
        try:
            scores = [engine.score(prompt) for prompt in prompts]
        except RuntimeError as error:  # a library that says no probabilities of a text
            print(f"no perplexity: {escape_control(str(error))}", file=sys.stderr)
            scores = []
    return answers, guessed, scores


def ask_reference(prompts: list[list[int]], answers: list[list[int]]) -> list[dict]:
    """The same tokens, read by Transformers in an environment that has it."""
    python = HERE / CONVERTING if (HERE / CONVERTING).exists() else sys.executable
    command = [python, HERE / "compare_reference.py", find_source(CONFIG, "model"), CONFIG.get("revision") or ""]
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(prompts, answers, strict=True)]
    request = json.dumps({"weights": CONFIG["serving"]["weights"], "rows": rows})
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"Transformers could not read the model ({done.returncode}), see above: nothing was compared.")
    return json.loads(done.stdout)


def compare_answers(answers: list[list[int]], reference: list[dict]) -> dict:
    """Where an answer first leaves that of the model. What follows a difference has another beginning."""
    differences, ties, equal = [], 0, 0
    for number, (answer, row) in enumerate(zip(answers, reference, strict=True)):
        place = next((place for place, token in enumerate(answer) if token != row["likeliest"][place]), None)
        equal += len(answer) if place is None else place
        if place is None:
            continue
        if row["gaps"][place] < TIE:
            ties += 1
            continue
        expected = row["likeliest"][place]
        difference = {"prompt": number, "place": place, "token": answer[place], "expected": expected}
        differences.append(difference | {"logits_apart": row["gaps"][place]})
    total = sum(map(len, answers))
    return {
        "equal_answers": len(answers) - len(differences) - ties,
        "ties": ties,
        "equal_share": equal / total,
        "differences": differences,
    }


def count_agreement(prompts: list[list[int]], guesses: list[list[int]], reference: list[dict]) -> float:
    pairs = [
        (guess, row["guesses"][place - 1])
        for prompt, guessed, row in zip(prompts, guesses, reference, strict=True)
        for place, guess in zip(list_places(prompt), guessed, strict=True)
    ]
    return sum(guess == expected for guess, expected in pairs) / len(pairs)


def compare_scores(scores: list[list[float]], reference: list[list[float]]) -> dict:
    """Perplexity of the prompts by the engine and by the model: how much likelier the model finds them, on average.
    ``perplexity_error`` is one standard error of the change, of tokens that are taken as independent."""
    expected = find_perplexity(reference)
    report = {"reference_perplexity": expected, "perplexity": None, "perplexity_change": None, "perplexity_error": None}
    if not scores:
        return report
    apart = [b - a for ours, theirs in zip(scores, reference, strict=True) for a, b in zip(ours, theirs, strict=True)]
    perplexity = find_perplexity(scores)
    error = perplexity / expected * statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else None
    change = perplexity / expected - 1
    return report | {"perplexity": perplexity, "perplexity_change": change, "perplexity_error": error}


def find_perplexity(scores: list[list[float]]) -> float:
    """Of log-probabilities of the tokens of real text."""
    flat = [score for part in scores for score in part]
    return math.exp(-sum(flat) / len(flat))


def describe(report: dict) -> str:
    kind = "exact" if report["exact"] else "not exact"
    perplexity = f"perplexity {report['reference_perplexity']:.4g}"
    if report["perplexity"] is None:
        perplexity += " of the prompts, and this engine cannot say its own"
    else:
        error = "" if report["perplexity_error"] is None else f" ± {report['perplexity_error']:.2%}"
        perplexity += f" of the prompts, with this engine {report['perplexity']:.4g} "
        perplexity += f"({report['perplexity_change']:+.2%}{error})"
    return (
        f"{report['engine']}, {report['weights']} ({kind}): {report['equal_answers']} of {report['prompts']} answers "
        f"of {report['new_tokens']} tokens equal to eager Transformers' in {report['reference_dtype']}, "
        f"{report['ties']} leave it at a tie; {report['next_token_agreement']:.1%} of next tokens agree; {perplexity}"
    )


if __name__ == "__main__":
    mask_messages()
    main()
