"""Random cases, each a plan within its limits or a refusal with a reason: `python benchmarks/fuzz.py --cases 10000`.

--mode infer    questions about serving alone (fuzz_serving.py); train (the default): of both kinds
--first N       the first seed (0): a case is drawn from its seed alone, so that one can be run again: --first 4711 --cases 1
--render N      so many of the planned ones are rendered, and every file read by what reads it in use
--models DIR    config.json files (examples/models, in addition to those); half of the models have drawn sizes
--seconds S     stop after so long, and say how many were run
--workers N     so many processes side by side (1)
--out FILE      the result as JSON, written anew every 500 cases, else on standard output at the end
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import platform
import re
import shlex
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fuzz_cases import FuzzCase, draw_case  # noqa: E402
from benchmarks.fuzz_serving import check_limits, draw_serving_case  # noqa: E402
from generator.decide.plan import Plan, Planned  # noqa: E402
from generator.decide.space import find_usable_gib  # noqa: E402
from generator.emit.document import build_document, dump_answers  # noqa: E402
from generator.emit.plan_json import from_json, to_json  # noqa: E402
from generator.errors import NothingFits, PerfgenError  # noqa: E402
from generator.pipeline import find_machine, plan_request  # noqa: E402
from generator.show import terminal  # noqa: E402

MOST_SECONDS = 5.0
"""of processor time, for one answer"""
MOST_GOAL_SECONDS = 60.0
"""for a rented machine: up to two hundred are planned for, each named as it is"""
MOST_CHARACTERS = 700
"""of a refusal: what, against what, what to do; lists of names included"""
REPEATED = 10
"""every so many planned cases are planned a second time"""
PART = 50
"""cases that a process runs before it gives an account of them"""
TOLD = 500
"""cases between two lines of progress"""
DRAWS = {"train": draw_case, "infer": draw_serving_case}
SHOWN = 5
"""slowest cases in the result"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case. ``planned`` is there where a plan was made; ``faults`` are what must not be."""

    case: FuzzCase
    kind: str
    seconds: float
    """of processor time until there was an answer"""
    faults: tuple[str, ...] = ()
    planned: Planned | None = None
    document: dict[str, Any] | None = None
    rendered: bool = False


def run_case(case: FuzzCase, *, repeat: bool = False) -> Outcome:
    """Plan one case in process and hold it to what every case must keep."""
    with tempfile.TemporaryDirectory(prefix="perfgen-fuzz-") as folder:
        request = case.write(Path(folder))
        started = time.process_time()
        try:
            if case.target is not None:
                request, _ = find_machine(request, case.target, lambda _: None)
            planned = plan_request(request)
        except PerfgenError as error:
            seconds = time.process_time() - started
            refused = (*check_time(case, seconds), *check_refusal(error))
            return Outcome(case=case, kind=type(error).__name__, seconds=seconds, faults=refused)
        except Exception:
            seconds = time.process_time() - started
            return Outcome(case=case, kind="crash", seconds=seconds, faults=(traceback.format_exc(limit=-6),))
        seconds = time.process_time() - started
        try:
            content = to_json(build_document(planned, name="fuzzed"))
            faults = [*check_time(case, seconds), *check_plan(planned), *check_document(planned, content)]
            faults += check_limits(planned.plan, content)
            if repeat and to_json(build_document(plan_request(request), name="fuzzed")) != content:
                faults.append("planned twice, two plans")
        except Exception:
            return Outcome(case=case, kind="crash", seconds=seconds, faults=(traceback.format_exc(limit=-6),))
    return Outcome(case=case, kind="plan", seconds=seconds, faults=tuple(faults), planned=planned, document=content)


def run_timely(case: FuzzCase, *, repeat: bool = False) -> Outcome:
    """Once more, twice at most, where it took too long: others on the machine make processor time longer too."""
    outcome = run_case(case, repeat=repeat)
    for _ in range(2):
        if not any(check_time(case, outcome.seconds)):
            break
        outcome = min(outcome, run_case(case, repeat=repeat), key=lambda one: one.seconds)
    return outcome


def check_time(case: FuzzCase, seconds: float) -> Iterator[str]:
    if seconds > (MOST_SECONDS if case.target is None else MOST_GOAL_SECONDS):
        yield f"took {seconds:.1f} s of processor time"


def check_refusal(error: PerfgenError) -> Iterator[str]:
    """A reason, what to do, and not a page of it."""
    ladder = error.ladder if isinstance(error, NothingFits) else ()
    text = str(error)
    if not error.message.strip():
        yield "a refusal without a reason"
    if not error.hint and not ladder:
        yield f"a refusal that does not say what to do: {text}"
    if any(line.rstrip().endswith(":") for line in text.splitlines()):
        yield f"a refusal that breaks off: {text}"
    if len(text) > MOST_CHARACTERS:
        yield f"a refusal of {len(text)} characters: {text[:300]}…"
    if {"nan", "inf"} & set(re.findall(r"[a-z]+", text.lower())):
        yield f"a number that is none: {text}"
    for rung in ladder:
        yield from check_estimate(rung.best.estimate, f"rung {rung.option}")


def check_plan(planned: Planned) -> Iterator[str]:
    """What must hold of a decided plan, and of how its result is served."""
    request, plan = planned.work.request, planned.plan
    yield from check_one_plan(plan)
    for axis, name in request.pins:
        if plan.best.choice.get(axis) != name:
            yield f"pinned {axis}={name}, and it is {plan.best.choice.get(axis)}"
    run, workload = plan.best.execution, plan.case.workload
    if workload.mode == "train" and run.micro_batch * run.accumulation * plan.best.layout.dp != workload.global_batch:
        yield f"{run.micro_batch} x {run.accumulation} x {plan.best.layout.dp} is not the global batch {workload.global_batch}"
    for name in ("seq_len", "global_batch", "learning_rate", "max_steps", "epochs"):
        asked = getattr(request, name)
        if asked is not None and getattr(workload, name) != asked:
            yield f"asked for {name} {asked}, planned {getattr(workload, name)}"
    if plan.best.layout.devices > plan.case.devices:
        yield f"uses {plan.best.layout.devices} of {plan.case.devices} devices"
    for note in planned.notes:
        if not note.text.strip() or "None" in note.text.split():
            yield f"a note that says nothing: {note}"
    if plan.serving:
        yield from (f"serving: {fault}" for fault in check_one_plan(plan.serving))


def check_one_plan(plan: Plan) -> Iterator[str]:
    best = plan.best.estimate
    yield from check_estimate(best, "the plan")
    usable = find_usable_gib(plan.best.cost, plan.best.execution)
    if best.peak_memory_gib > usable * (1 + 1e-9):
        yield f"{best.peak_memory_gib:.2f} GiB are more than the {usable:.2f} that may be used of {best.limit_gib:.2f}"
    for runner in plan.runners_up:
        yield from check_estimate(runner.estimate, "a runner-up")
    for decision in plan.decisions:
        if not decision.why.strip():
            yield f"{decision.axis}={decision.chosen} has no reason"
        yield from (f"{decision.axis}={r.name} has no reason" for r in decision.rejected if not r.why.strip())


def check_estimate(estimate: Any, of: str) -> Iterator[str]:
    """Finite parts that are not negative, add up, and stay below the limits."""
    parts = (*estimate.memory, *estimate.host_memory, *estimate.time)
    yield from (f"{of}: {p.name} is {p.value}" for p in parts if not (math.isfinite(p.value) and p.value >= 0))
    for whole, listed in ((estimate.peak_memory_gib, estimate.memory), (estimate.step_seconds, estimate.time)):
        if not math.isclose(whole, math.fsum(part.value for part in listed), rel_tol=1e-9):
            yield f"{of}: {whole}, and its parts are {[(part.name, part.value) for part in listed]}"
    if estimate.allocator_peak_gib > estimate.peak_memory_gib * (1 + 1e-9):
        yield f"{of}: PyTorch allocates {estimate.allocator_peak_gib} GiB of a peak of {estimate.peak_memory_gib}"
    if estimate.peak_memory_gib > estimate.limit_gib:
        yield f"{of}: {estimate.peak_memory_gib:.2f} of {estimate.limit_gib:.2f} GiB"
    host = sum(part.value for part in estimate.host_memory)
    if estimate.host_limit_gib is not None and host > estimate.host_limit_gib:
        yield f"{of}: {host:.2f} of {estimate.host_limit_gib:.2f} GiB of the host"
    if not 0 < estimate.step_seconds < math.inf:
        yield f"{of}: a step of {estimate.step_seconds} s"


@cache
def load_schema() -> Draft202012Validator:
    schema = json.loads((ROOT / "generator" / "plan.schema.json").read_text(encoding="utf-8"))
    return Draft202012Validator(schema)


def check_document(planned: Planned, content: dict[str, Any]) -> Iterator[str]:
    """The document is JSON by the schema file, adds up, and can be shown."""
    text = json.dumps(content, allow_nan=False)
    for error in load_schema().iter_errors(json.loads(text)):
        yield f"not by plan.schema.json: {error.json_path}: {error.message[:200]}"
    document = from_json(json.loads(text))
    if to_json(document) != content:
        yield "the document is another once it is read back"
    total = sum(document.estimate.memory_gib.values())
    if abs(total - document.estimate.peak_memory_gib) > 0.01 + 0.001 * total:
        yield f"the parts of memory are {total} GiB, and the peak {document.estimate.peak_memory_gib}"
    terminal.print_plan(document, Console(file=io.StringIO(), width=100), every=True)
    if not dump_answers(document):
        yield "no answers"


def summarize_outcomes(outcomes: list[Outcome], wall_seconds: float) -> dict[str, Any]:
    """Counts, and quantiles of processor time by kind of answer."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:SHOWN]
    plans = [o.seconds for o in outcomes if o.kind == "plan"]
    return {
        "cases": len(outcomes),
        "answers": dict(sorted(kinds.items())),
        "faults": sum(bool(outcome.faults) for outcome in outcomes),
        "wall_seconds": round(wall_seconds, 1),
        "processor_seconds": {
            "all": list_quantiles([outcome.seconds for outcome in outcomes]),
            "plans": list_quantiles(plans),
            "searches for a rented machine": list_quantiles([o.seconds for o in outcomes if o.case.target]),
            "refusals that nothing fits": list_quantiles([o.seconds for o in outcomes if o.kind == "NothingFits"]),
        },
        "faulty": [outcome.case.describe() for outcome in outcomes if outcome.faults][:SHOWN],
        "searched_share": round((kinds["plan"] + kinds["NothingFits"]) / max(len(outcomes), 1), 3),
        "over_5_seconds": sum(o.seconds > MOST_SECONDS for o in outcomes if o.case.target is None),
        "slowest": [{"seconds": round(o.seconds, 2), "answer": o.kind, "case": o.case.describe()} for o in slowest],
    }


def list_quantiles(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    at = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}
    return {name: round(cuts[place - 1], 3) for name, place in at.items()} | {"most": round(max(seconds), 3)}


def list_models(folder: Path | None) -> tuple[Path, ...]:
    """The configs of the examples, and those of a folder of model folders."""
    own = sorted((ROOT / "examples" / "models").glob("*.json"))
    return (*own, *(sorted(folder.glob("*/config.json")) if folder else ()))


def run_cases(options: argparse.Namespace) -> list[Outcome]:
    """Every case; faults are printed as they come. Ctrl-C ends it as the end of the time does."""
    outcomes: list[Outcome] = []
    with suppress(KeyboardInterrupt):
        for part in run_parts(options):
            outcomes += part
            for outcome in part:
                if outcome.faults:
                    print(f"\n{outcome.case.describe()}", *outcome.faults, sep="\n  ", file=sys.stderr, flush=True)
            if len(outcomes) // TOLD > (len(outcomes) - len(part)) // TOLD:
                rendered = sum(outcome.rendered for outcome in outcomes)
                print(f"{len(outcomes)} cases, {rendered} rendered", file=sys.stderr, flush=True)
                save_result(options, outcomes)
            if time.monotonic() - options.started > options.seconds:
                break
    return outcomes


def run_parts(options: argparse.Namespace) -> Iterator[list[Outcome]]:
    """The outcomes of ``PART`` cases at a time, in the order of their seeds."""
    models, parts, due = list_models(options.models), [], 0
    for start in range(0, options.cases, PART):
        end = min(start + PART, options.cases)
        rendered, due = due, options.render * end // options.cases
        seeds = range(options.first + start, options.first + end)
        parts.append(Part(mode=options.mode, seeds=seeds, render=due - rendered, models=models))
    if options.workers == 1:
        yield from map(run_part, parts)
        return
    # Ctrl-C is for the process that keeps the outcomes
    with multiprocessing.Pool(options.workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(run_part, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Cases that one process runs; of the planned ones the first ``render`` are rendered."""

    mode: str
    seeds: range
    render: int
    models: tuple[Path, ...]


def run_part(part: Part) -> list[Outcome]:
    outcomes: list[Outcome] = []
    planned = rendered = 0
    for seed in part.seeds:
        outcome = run_timely(DRAWS[part.mode](seed, part.models), repeat=planned % REPEATED == 0)
        planned += outcome.kind == "plan"
        faults = list(outcome.faults)
        renders = bool(outcome.document) and rendered < part.render and is_renderable(outcome.planned)
        if renders:
            rendered += 1
            faults += check_rendered(outcome.document)
        # what is kept of ten thousand is small: the files of a case may have 50 MB
        case = replace(outcome.case, files={})
        outcomes.append(
            Outcome(case=case, kind=outcome.kind, seconds=outcome.seconds, faults=tuple(faults), rendered=renders)
        )
    return outcomes


def check_rendered(document: dict[str, Any]) -> list[str]:
    from benchmarks.fuzz_projects import check_project

    try:
        return check_project(document)
    except Exception:
        return [traceback.format_exc(limit=-6)]


def is_renderable(planned: Planned | None) -> bool:
    """Whether a project may be made of it."""
    from generator.decide.unemitted import check_emittable

    try:
        check_emittable(planned)
    except PerfgenError:
        return False
    return True


def parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--mode", choices=DRAWS, default="train")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--render", type=int, default=0)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = parse_options(words)
    options.command = shlex.join(["python", "benchmarks/fuzz.py", *(words or sys.argv[1:])])
    options.started = time.monotonic()
    outcomes = run_cases(options)
    print(save_result(options, outcomes))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def save_result(options: argparse.Namespace, outcomes: list[Outcome]) -> str:
    """As JSON; into ``--out`` too."""
    result = {
        "schema": 1,
        "command": options.command,
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "first_seed": options.first,
        "rendered": sum(outcome.rendered for outcome in outcomes),
    } | summarize_outcomes(outcomes, time.monotonic() - options.started)
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
