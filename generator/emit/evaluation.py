"""What a project holds out of its data, and when it is evaluated on that."""

from __future__ import annotations

from dataclasses import replace

from generator.case.defaults import count_sequences
from generator.case.held_out import FEW_ROWS, choose_share
from generator.case.layout import Layout
from generator.decide import evaluation as schedule
from generator.decide.notes import Note
from generator.decide.plan import Planned
from generator.emit.figures import round_floats
from generator.emit.plan_document import EvaluationRecord, SavingRecord
from generator.figures import format_figure


def plan_evaluation(planned: Planned, saving: SavingRecord) -> EvaluationRecord | None:
    """``None`` where nothing is held out."""
    plan, held = planned.plan, planned.work.held_out
    if held is None:
        return None
    case, best = plan.case, plan.best
    keeps = keeps_best(best.layout)
    rows = count_sequences(case.workload, held.file or planned.work.data)
    planned_schedule = schedule.schedule_evaluation(
        rows=rows,
        share=1.0 if held.file else held.share,
        batch_rows=best.execution.micro_batch * best.execution.dp,
        forward_seconds=schedule.compute_forward_seconds(best.estimate, best.execution),
        step_seconds=best.estimate.step_seconds,
        steps=case.workload.steps,
        save_steps=saving.save_steps,
        save_seconds=saving.save_seconds if keeps else 0.0,
        global_batch=0 if held.file else case.workload.global_batch,
    )
    if planned_schedule is None:
        return None
    record = EvaluationRecord(
        summary="",
        source=held.file.path if held.file else choose_share(rows) if held.share is None else held.share,
        default=held.share is None and held.file is None,
        rows=planned_schedule.rows,
        interval=planned_schedule.interval,
        count=planned_schedule.count,
        seconds=round_floats(planned_schedule.seconds),
        share=round_floats(planned_schedule.share),
        keeps_best=keeps,
        notes=() if keeps else ("the last model is kept, not the best one: a checkpoint here holds weights only",),
    )
    return replace(record, summary=summarize_evaluation(record))


def summarize_evaluation(record: EvaluationRecord) -> str:
    """Which rows, when, and what that costs, in words."""
    count = f"{'at most ' if record.default else ''}{record.rows:,} row{'s' if record.rows > 1 else ''}"
    rows = f"{count} of {record.source}" if isinstance(record.source, str) else f"{count} held out of the data"
    when = f"before the first step and every {record.interval:,} step{'s' if record.interval > 1 else ''}"
    share = f"{record.share * 100:.1f} % of the run{'' if record.count else ' if it has as many steps'}"
    return f"{rows}{' (a default: --eval)' if record.default else ''}, {when}: {format_figure(record.seconds, 2)} s each, {share}"


def note_few_rows(evaluation: EvaluationRecord | None) -> tuple[Note, ...]:
    """What nobody chose and says little."""
    if evaluation is None or not evaluation.default or evaluation.rows >= FEW_ROWS:
        return ()
    rows = f"{evaluation.rows} row{'s' if evaluation.rows > 1 else ''}"
    chooses = ", and choose the model that is kept" if evaluation.keeps_best else ""
    text = f"only {rows} held out: so few say little{chooses}; give --eval FILE, a larger share (--eval 0.2), or --eval none"
    return (Note(kind="evaluation", text=text),)


def note_no_rows(planned: Planned, evaluation: EvaluationRecord | None) -> tuple[Note, ...]:
    """That nothing is evaluated, where nobody asked for that."""
    if evaluation is not None or planned.work.held_out is None:
        return ()
    workload = planned.plan.case.workload
    rows = count_sequences(workload, planned.work.data)
    text = (
        f"nothing is held out and nothing evaluated: {rows:,} sequences are a global batch of {workload.global_batch:,} at "
        "most; give --eval FILE, a smaller --global-batch, or more data"
    )
    return (Note(kind="evaluation", text=text),)


def count_untrained_rows(planned: Planned, evaluation: EvaluationRecord | None) -> int:
    """Rows of the data that are not trained on: none where the evaluation has a file of its own."""
    held = planned.work.held_out
    return 0 if evaluation is None or held is None or held.file else evaluation.rows


def keeps_best(layout: Layout) -> bool:
    """Whether the best model can be loaded again: not where a checkpoint holds weights alone (save_only_model)."""
    return not layout.at_load
