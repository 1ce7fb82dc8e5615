"""Shapes of rows as they come from the field: what is made of each, and what is refused, so that nothing is left out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_data_formats import refuse, write_rows

from generator.errors import SourceError, UsageError
from generator.inputs.chat_rendering import THOUGHTS
from generator.inputs.data_files import read_data
from generator.inputs.data_formats import Hints
from generator.inputs.data_recognition import recognise_format
from generator.inputs.leaves import load_choose_form, load_make_example

USER, ANSWER = {"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A."}
SYSTEM = {"role": "system", "content": "Be brief."}


def make(folder: Path, rows: list[dict], number: int = -1, name: str = "d.jsonl", **hints) -> tuple[str, list[str]]:
    """The kind that rows are read as, and the example of one of them as "role: content"."""
    write_rows(folder / name, rows)
    recognised = read_data(str(folder / name), task="sft", hints=Hints(**hints)).recognised
    example = load_make_example(recognised.leaf)(rows[number], recognised.column_of)
    if "messages" not in example:
        return recognised.kind, [example.get("prompt", "") + "|" + example.get("completion", example.get("text", ""))]
    return recognised.kind, [f"{turn['role']}: {turn['content']}" for turn in example["messages"]]


SHAPES = {
    "Alpaca whose inputs begin after the rows that are looked at": (
        [{"instruction": "Do.", "input": "", "output": "B"}] * 1000
        + [{"instruction": "Do.", "input": "this", "output": "B"}],
        ("alpaca", ["user: Do.\n\nthis", "assistant: B"]),
    ),
    "an input that is a number": (
        [{"instruction": "Do.", "input": "a", "output": "B"}, {"instruction": "Do.", "input": 7, "output": "B"}],
        ("alpaca", ["user: Do.\n\n7", "assistant: B"]),
    ),
    "prompt and completion with an input": (
        [{"prompt": "Do.", "input": "this", "completion": "B"}],
        ("question-answer", ["user: Do.\n\nthis", "assistant: B"]),
    ),
    "prompt and completion with a system turn": (
        [{"system": "Be brief.", "prompt": "Do.", "completion": "B"}],
        ("question-answer", ["system: Be brief.", "user: Do.", "assistant: B"]),
    ),
    "prompt and completion with an input that is always empty": (
        [{"prompt": "a", "input": "", "completion": "b"}],
        ("prompt-completion", ["a|b"]),
    ),
    "SQuAD": (
        [{"id": "1", "title": "t", "context": "C", "question": "Q?", "answers": {"text": ["A.", "a"], "answer_start": [0]}}],
        ("question-answer", ["user: Q?\n\nC", "assistant: A."]),
    ),
    "an answer that is a number": (
        [{"question": "2 + 2?", "answer": 4}],
        ("question-answer", ["user: 2 + 2?", "assistant: 4"]),
    ),
    "preference pairs that repeat the prompt behind a system turn": (
        [{"prompt": "Q?", "chosen": [SYSTEM, USER, ANSWER], "rejected": [SYSTEM, USER, SYSTEM]}],
        ("preference-messages", ["system: Be brief.", "user: Q?", "assistant: A."]),
    ),
    "roles with capitals": (
        [{"messages": [{"role": "User", "content": "Q?"}, {"role": "Assistant", "content": "A."}]}],
        ("messages", ["user: Q?", "assistant: A."]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_is_kept_by_each_name_that_transformers_takes(tmp_path, name):
    write_rows(tmp_path / "d.jsonl", [{"messages": [USER, ANSWER | {name: "Because."}]}])
    recognised = read_data(str(tmp_path / "d.jsonl"), task="sft").recognised
    row = {"messages": [USER, ANSWER | {name: "Because."}]}
    answer = load_make_example(recognised.leaf)(row, recognised.column_of)["messages"][-1]
    assert json.loads(answer["further"]) == {name: "Because."}


WRITTEN = json.dumps([USER, ANSWER])


@pytest.mark.parametrize("task", ["sft", "causal-lm"])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("d.jsonl", {"messages": WRITTEN}),
        ("d.csv", {"id": "1", "conversations": json.dumps([{"from": "human", "value": "Q?"}])}),
        ("d.parquet", {"chat": "\n " + WRITTEN, "source": "a"}),
        ("d.jsonl", {"text": WRITTEN}),
    ],
)
def test_conversations_written_as_json_text_are_no_texts(tmp_path, task, name, row):
    """Brackets and role names would be learned, by a model that answers with them."""
    column = next(key for key, value in row.items() if "[" in value)
    write_rows(tmp_path / name, [row] * 4)
    with pytest.raises(SourceError, match=f"'{column}' holds conversations as JSON in a text") as raised:
        read_data(str(tmp_path / name), task=task)
    assert "json.loads" in str(raised.value.hint)
    named = Hints(text_column=column, format="text" if task == "sft" else None)
    assert read_data(str(tmp_path / name), task=task, hints=named).recognised.form == "text"


def test_a_named_column_of_conversations_as_text_is_not_learned_as_text(tmp_path):
    write_rows(tmp_path / "d.jsonl", [{"messages": WRITTEN}] * 4)
    with pytest.raises(SourceError, match="as JSON in a text"):
        read_data(str(tmp_path / "d.jsonl"), task="sft", hints=Hints(columns={"messages": "messages"}))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_part_of_a_row_is_left_out(tmp_path, shape):
    rows, expected = SHAPES[shape]
    assert make(tmp_path, rows) == expected


REFUSED = [
    ({"instruction": "Add.", "input": [1, 2], "output": "3"}, "'input' holds no text but list"),
    ({"id": "d1", "dialog": ["hi", "hello"]}, "'id' could be; 'dialog' hold lists"),
    ({"id": "d1", "conversations": {"from": ["human", "gpt"], "value": ["q", "a"]}}, "'conversations' hold lists"),
    ({"title": "t", "paragraphs": [{"context": "c", "qas": []}]}, "'title' could be; 'paragraphs' hold lists"),
    ({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}, "without a prompt"),
    ({"prompt": "Q?", "chosen": [SYSTEM, {**USER, "content": "else"}, ANSWER], "rejected": [USER, SYSTEM]}, "another question"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "words"), REFUSED)
def test_what_cannot_be_placed_is_refused(tmp_path, row, words):
    refuse(tmp_path, [row] * 4, words)


LEFT_OUT = [
    ({"question": "Q?", "choices": ["a", "b"], "answer": 1}, "'choices' may belong", {"prompt": "question", "answer": "answer"}),
    ({"passage": "P", "question": "Q?", "answer": "A"}, "'passage' may belong", {"input": "passage"}),
    ({"instruction": "Q?", "output": "A", "history": [["a", "b"]]}, "'history' may belong", {"prompt": "instruction", "answer": "output"}),
    ({"image": "a.png", "messages": [USER, ANSWER]}, "'image' may belong", {"messages": "messages"}),
    ({"prompt": "a", "completion": "b", "label": False}, "'label' is false for answers that are bad", {"prompt": "prompt", "answer": "completion"}),
]  # fmt: skip


@pytest.mark.parametrize(("row", "words", "given"), LEFT_OUT)
def test_what_a_question_may_need_is_left_out_only_on_request(tmp_path, row, words, given):
    error = refuse(tmp_path, [row] * 4, words)
    assert all(f"--column {meaning}={column}" in str(error.hint) for meaning, column in given.items())
    assert read_data(str(tmp_path / "d.jsonl"), task="sft", hints=Hints(columns=given)).rows == 4
    empty = {name: None if name in words or name in ("history", "image") else value for name, value in row.items()}
    write_rows(tmp_path / "d.jsonl", [{k: v for k, v in empty.items() if k not in ("choices", "passage", "label")}] * 4)
    assert read_data(str(tmp_path / "d.jsonl"), task="sft").rows == 4


def test_one_turn_a_row_is_no_text(tmp_path):
    rows = [
        {"message_id": n, "parent_id": n - 1, "text": "t", "role": ("prompter", "assistant")[n % 2]} for n in range(4)
    ]
    refuse(tmp_path, rows, "one turn a row.*assistant, prompter")
    assert read_data(str(tmp_path / "d.jsonl"), task="sft", hints=Hints(format="text")).recognised.kind == "text"
    half = [
        {"conversations": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    ]
    refuse(
        tmp_path,
        half,
        "mixes conversations in 'conversations': 1 rows of role and content and 1 rows of from and value",
    )


def test_hints_that_contradict_the_data_or_the_task_are_refused(tmp_path):
    rows = [{"instruction": "Do.", "input": "this", "output": "B"}] * 4
    swapped = {"prompt": "output", "answer": "instruction"}
    refuse(tmp_path, rows, "asks in 'instruction' and answers in 'output'", columns=swapped)
    assert make(tmp_path, rows, columns=swapped, format="question-answer")[1][0].startswith("user: B")
    refuse(tmp_path, rows, "no column 'chosen'", format="preference")
    refuse(tmp_path, rows, "which a plain prompt has no place for", format="prompt-completion")
    assert "--text-column" in str(refuse(tmp_path, rows, "no text among", format="text").hint)
    for hint in ({"format": "alpaca"}, {"columns": {"answer": "output"}}):
        with pytest.raises(UsageError, match="is of --task sft, and the task is causal-lm"):
            read_data(str(tmp_path / "d.jsonl"), task="causal-lm", hints=Hints(text_column="output", **hint))


def test_spaces_behind_the_commas_of_a_header_belong_to_no_value(tmp_path):
    """As people write tables by hand; a quote that follows a space was a part of its value."""
    (tmp_path / "d.csv").write_text('text, label\n"good, day", "pos"\n bad, neg\n' * 1 + "so so,neg\n" * 8)
    data = read_data(str(tmp_path / "d.csv"), task="text-classification")
    assert (data.columns, data.label_names, data.rows) == (("text", "label"), ("neg", "pos"), 10)
    assert not load_choose_form()("text, mine,label")["skipinitialspace"]


@pytest.mark.parametrize(
    ("header", "mark"),
    [("a\tb, or c; or d", "\t"), ('"a;b;c",d', ","), ('"a,b,c"|d', "|"), ("alone", ","), ('"it is ""a, b""";c', ";")],
)
def test_what_stands_between_columns_is_not_looked_for_inside_of_their_names(header, mark):
    assert load_choose_form()(header)["delimiter"] == mark


def test_columns_of_a_csv_may_stand_between_other_marks(tmp_path):
    for name, mark in (("a.csv", ";"), ("b.csv", "\t"), ("c.tsv", "\t"), ("d.csv", ","), ("e.csv", "|")):
        (tmp_path / name).write_text(f"question{mark}answer\n" + f'"a, b; c"{mark}d\n' * 3)
        data = read_data(str(tmp_path / name), task="sft")
        assert (data.recognised.kind, data.columns, data.rows) == ("question-answer", ("question", "answer"), 3), name


@pytest.mark.parametrize(
    ("label", "result"), [(1.0, "1"), (True, "True"), (["a", "b"], "several labels"), (0.37, "0.37, a measure"), (None, "it is empty"),
     (" \t", "it is empty"), (float("nan"), "it is empty"), (1e300, "1000000000000000")]
)  # fmt: skip
def test_labels_of_every_type_are_read_or_named(tmp_path, label, result):
    rows = [{"text": "t", "label": "0"}, {"text": "u", "label": "1"}, {"text": "v", "label": label}]
    if result in ("1", "True") or label == 1e300:
        write_rows(tmp_path / "d.jsonl", rows)
        names = read_data(str(tmp_path / "d.jsonl"), task="text-classification").label_names
        assert any(name.startswith(result) for name in names)
    else:
        refuse(tmp_path, rows, f"row 3: .*{result}", task="text-classification")


def test_labels_of_a_table_with_gaps_are_found_by_what_they_are(tmp_path):
    """Whole numbers become floats beside a NaN, as pandas writes them: no column of measures, and rows without a label."""
    rows = [{"text": f"t{n}", "mood": float(n % 2) if n else float("nan")} for n in range(40)]
    write_rows(tmp_path / "d.parquet", rows)
    data = read_data(str(tmp_path / "d.parquet"), task="text-classification", skip_bad=True)
    assert (data.label_names, data.bad_rows) == (("0", "1"), 1)


def test_labels_that_differ_in_spaces_or_capitals_alone_are_said(tmp_path):
    rows = [{"text": "t", "label": ("pos", "neg", "pos ", "Neg", "new")[n % 5]} for n in range(40)]
    write_rows(tmp_path / "d.csv", rows)
    data = read_data(str(tmp_path / "d.csv"), task="text-classification")
    assert data.labels == 5 and any("capitals alone" in n and "'Neg', 'neg', 'pos', 'pos '" in n for n in data.notes)
    write_rows(tmp_path / "e.csv", [row for row in rows if row["label"].islower() and " " not in row["label"]])
    assert not any("capitals" in n for n in read_data(str(tmp_path / "e.csv"), task="text-classification").notes)


def test_measures_that_a_table_has_as_text_are_no_classes(tmp_path):
    """A CSV has no numbers: scores were learned as classes of one row each. Grades, of which there are few, are classes."""
    write_rows(tmp_path / "d.csv", [{"text": f"t{n}", "label": f"{n / 7:.3f}"} for n in range(60)])
    with pytest.raises(SourceError, match=r"'label' holds measures, as 0\.143"):
        read_data(str(tmp_path / "d.csv"), task="text-classification")
    write_rows(tmp_path / "e.csv", [{"text": f"t{n}", "label": f"{n % 4 + 0.5}"} for n in range(60)])
    assert read_data(str(tmp_path / "e.csv"), task="text-classification").labels == 4


def test_labels_that_are_none_in_most_rows_are_no_bad_rows(tmp_path):
    """--skip-bad was advised, which would have left nothing."""
    refuse(
        tmp_path,
        [{"text": "t", "label": n / 7} for n in range(9)],
        "'label' holds measures",
        task="text-classification",
    )
    refuse(tmp_path, [{"text": "t", "label": ["a", "b"]}] * 9, "several labels of a row", task="text-classification")


@pytest.mark.parametrize(
    "pair", [("sentence1", "sentence2"), ("Question", "sentence"), ("text", "text_pair"), ("query", "passage")]
)
def test_two_texts_with_one_label_are_refused_unless_one_is_named(tmp_path, pair):
    rows = [dict(zip((*pair, "label"), (f"some words {n}", f"other words {n}", n % 2), strict=True)) for n in range(20)]
    with pytest.raises(SourceError, match=f"the label of {pair[0]!r} and {pair[1]!r} together"):
        recognise_format((*pair, "label"), rows, "text-classification")
    one = recognise_format((*pair, "label"), rows, "text-classification", Hints(text_column=pair[0]))
    assert one.column_of["text"] == pair[0] and repr(pair[1]) in one.describe()
    assert recognise_format(
        ("title", "text", "label"), [{"title": "t", **r, "text": "x"} for r in rows], "text-classification"
    )


def test_a_label_that_is_there_and_empty_is_called_so(tmp_path):
    rows = [{"text": "t", "label": "0"}, {"text": "u", "label": "1"}, {"text": "v", "label": None}]
    refuse(tmp_path, rows, "row 3: no label in column 'label': it is empty", task="text-classification")


def test_a_label_of_every_row_and_a_first_line_that_is_a_row_are_said(tmp_path):
    write_rows(tmp_path / "d.jsonl", [{"text": "t", "label": f"l{n}"} for n in range(40)])
    notes = read_data(str(tmp_path / "d.jsonl"), task="text-classification").notes
    assert any("40 labels in 40 rows" in note for note in notes)
    for first, said in (("text,label", False), ("a very good film that nobody should miss,1", True)):
        (tmp_path / "d.csv").write_text(f"{first}\n" + "".join(f"film {n},{n % 2}\n" for n in range(40)))
        notes = read_data(str(tmp_path / "d.csv"), task="text-classification").notes
        assert any("if it is a row" in note for note in notes) is said and not any("labels in" in n for n in notes)


def test_columns_of_other_names_can_be_named(tmp_path):
    rows = [{"问题": f"{n}?", "回答": "b"} for n in range(9)]
    assert "--column prompt=NAME --column answer=NAME" in str(refuse(tmp_path, rows, "no text among").hint)
    assert str(refuse(tmp_path, rows, "no text among", task="causal-lm").hint) == "name it: --text-column"


def test_tool_calls_of_parquet_have_no_arguments_of_other_tools(tmp_path):
    import pyarrow.parquet as pq

    def row(name: str, **arguments) -> dict:
        tool = {
            "type": "function",
            "function": {"name": name, "parameters": {"properties": {k: {"type": "int"} for k in arguments}}},
        }
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}], "tools": [tool]}

    write_rows(tmp_path / "d.parquet", [row("f", a=1), row("g", b=2)])
    recognised = read_data(str(tmp_path / "d.parquet"), task="sft").recognised
    first = pq.read_table(tmp_path / "d.parquet").to_pylist()[0]
    assert first["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": None}
    example = load_make_example(recognised.leaf)(first, recognised.column_of)
    assert json.loads(example["messages"][1]["further"])["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert json.loads(example["tools"])[0]["function"]["parameters"]["properties"] == {"a": {"type": "int"}}


def test_a_csv_of_the_hub_that_datasets_would_load_as_one_column_is_refused():
    from generator.errors import SourceError
    from generator.inputs.hub_data import read_csv_head

    assert read_csv_head("a,b\n1,2\n", "d.csv") == [{"a": "1", "b": "2"}]
    with pytest.raises(SourceError, match="has ';' between its columns"):
        read_csv_head("a;b\n1;2\n", "d.csv")


def test_what_a_template_says_of_tools_has_room(tmp_path):
    """Qwen2.5 explains in 106 tokens how to call them: without room for these every answer was cut off."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    write_rows(
        tmp_path / "d.jsonl",
        [{"messages": [USER, ANSWER], "tools": [tool]}, {"messages": [USER, ANSWER], "tools": None}],
    )
    shortest, *_, longest = read_data(str(tmp_path / "d.jsonl"), task="sft").token_quantiles
    assert longest - shortest > len(json.dumps([tool])) / 4 + 200


def test_labels_that_nothing_learns_are_named(tmp_path):
    rows = "\n".join(json.dumps({"text": f"number {n} is fine", "Label": n % 2}) for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    notes = read_data(str(tmp_path / "rows.jsonl"), task="causal-lm").notes
    assert any("'Label' is not learned" in note and "--task text-classification" in note for note in notes)
    assert "not learned" not in str(read_data(str(tmp_path / "rows.jsonl"), task="text-classification").notes)
    of_texts = Hints(columns={"text": "Label"})
    (tmp_path / "rows.jsonl").write_text(
        rows.replace('"Label": 0', '"Label": "a b c"').replace('"Label": 1', '"Label": "d e f"')
    )
    assert "not learned" not in str(read_data(str(tmp_path / "rows.jsonl"), task="causal-lm", hints=of_texts).notes)
