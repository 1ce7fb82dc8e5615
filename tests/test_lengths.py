"""How many tokens examples have: as many as the run counts, and an estimate is called one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from generator.case.defaults import choose_seq_len
from generator.case.request import Request
from generator.case.sources import read_work
from generator.decide.lengths import describe_ratio, note_cut, note_few_blocks, note_late_answers
from generator.errors import SourceError
from generator.inputs import lengths
from generator.inputs.chat_rendering import build_renderer
from generator.inputs.chat_templates import read_chat_templates, read_special_tokens
from generator.inputs.lengths import fit_tokens

MODEL = Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json"
WORDS = ["the", "train", "is", "late", "where", "a", "station", "<end>", "system", "user", "assistant", "You", "help"]
CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '<|system|> You help <end>\n' }}{% endif %}"
    "{{ '<|' + message.role + '|> ' + message.content }} {{ eos_token }}\n{% endfor %}"
)
GENERATION = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\n"
    "    {% generation %}{{ message['content'] }} {{ eos_token }}{% endgeneration %}\n"
    "{% else %}{{ message['content'] }}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
    "{{ tools | tojson(indent=2) if tools }}{{ strftime_now('%Y') if false }}"
)
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + CHATML


@pytest.fixture
def model(tmp_path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(MODEL.read_text(encoding="utf-8"))
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    counter = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    counter.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    counter.add_special_tokens(["<s>", "<end>"])
    counter.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
        "eos_token": "<end>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


def write_chats(path: Path, count: int, system: bool) -> str:
    rng = random.Random(0)
    first = [{"role": "system", "content": "You help"}] if system else []
    rows = [
        [*first, {"role": "user", "content": say(rng)}, {"role": "assistant", "content": say(rng)}]
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return str(path)


def say(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))


def count_by_transformers(model: Path, data: str) -> list[int]:
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line)["messages"] for line in Path(data).read_text(encoding="utf-8").splitlines()]
    return sorted(len(tokenizer.apply_chat_template(row)["input_ids"]) for row in rows)


@pytest.mark.parametrize("system", [True, False])
def test_conversations_are_counted_as_their_template_renders_them(tmp_path, model, system):
    data = write_chats(tmp_path / "chats.jsonl", 100, system)
    work = read_work(Request(model=str(model), data=data, task="sft"))
    counted = count_by_transformers(model, data)
    assert (work.data.token_quantiles[0], work.data.token_quantiles[-1]) == (counted[0], counted[-1])
    assert work.data.tokens == sum(counted) and work.data.lengths_exact
    cut = sum(length > work.workload.seq_len for length in counted)
    assert cut <= 1 and (note_cut(work) is None) == (cut == 0)
    why = work.origins["seq_len"].why
    assert f"holds {'99 % of the' if cut else 'all'} examples, rounded up to a multiple of 64" in why
    assert f"has {counted[-1]} tokens (counted with the tokenizer on all 100 examples)" in why


@pytest.mark.parametrize("template", [CHATML, GENERATION])
def test_a_template_renders_as_transformers_renders_it(model, template):
    (model / "chat_template.jinja").write_text(template)
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)
    render = build_renderer(read_chat_templates(model), read_special_tokens(model))
    turns = [{"role": role, "content": f"the <{role}> & train"} for role in ("user", "assistant") * 3]
    tools = [{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {}}}]
    for offered in (None, tools):
        assert render(turns, {"tools": offered}) == tokenizer.apply_chat_template(turns, tools=offered, tokenize=False)


def test_of_many_examples_the_first_are_counted_and_the_rest_follow_their_characters(tmp_path, model, monkeypatch):
    data = write_chats(tmp_path / "chats.jsonl", 1000, system=False)
    monkeypatch.setattr(lengths, "COUNTED_ROWS", 200)
    work = read_work(Request(model=str(model), data=data, task="sft"))
    counted = count_by_transformers(model, data)
    assert work.data.tokens == pytest.approx(sum(counted), rel=0.03) and not work.data.lengths_exact
    assert work.data.token_quantiles[99] == pytest.approx(counted[990], rel=0.1)
    assert "the longest example has about" in work.origins["seq_len"].why
    assert "on the first 200 examples" in work.origins["seq_len"].why


def test_what_a_template_refuses_is_not_counted_and_the_length_is_an_estimate(tmp_path, model):
    (model / "chat_template.jinja").write_text(REFUSES)
    work = read_work(Request(model=str(model), data=write_chats(tmp_path / "c.jsonl", 64, system=True), task="sft"))
    assert not work.data.lengths_counted and "estimated" in work.origins["seq_len"].why
    (model / "chat_template.jinja").write_text("{% for %}")
    work = read_work(Request(model=str(model), data=str(tmp_path / "c.jsonl"), task="sft"))
    assert not work.data.lengths_counted


def test_what_is_cut_is_claimed_only_where_it_was_counted(tmp_path, model):
    data = write_chats(tmp_path / "c.jsonl", 64, system=True)
    counted = read_work(Request(model=str(model), data=data, task="sft", seq_len=64))
    assert "are longer than seq_len 64 and are cut there" in note_cut(counted)
    assert "the longest example has 1" in note_cut(counted)
    (model / "tokenizer.json").write_text("{}")
    estimated = read_work(Request(model=str(model), data=data, task="sft", seq_len=64))
    assert "by an estimate" in note_cut(estimated) and "`python data.py` counts them" in note_cut(estimated)


def test_a_length_that_a_model_lacks_is_not_said_to_hold_anything(tmp_path, model):
    data = write_chats(tmp_path / "c.jsonl", 64, system=True)
    work = read_work(Request(model=str(model), data=data, task="sft"))
    length, why = choose_seq_len(work.request, replace(work.spec, max_positions=32), work.data)
    assert length == 32 and not why.startswith("holds") and "all positions of" in why and "would need 128" in why


def test_letters_of_several_bytes_have_more_tokens(tmp_path):
    """SmolLM2's tokenizer makes 2.2 bytes of Russian a token, and 1.2 letters."""
    (tmp_path / "d.txt").write_text("поезд опаздывает\n" * 5000, encoding="utf-8")
    work = read_work(Request(model=str(MODEL), data=str(tmp_path / "d.txt"), tokenizer=None, from_scratch=True))
    assert work.data.tokens == pytest.approx((2 * 15 + 2) * 5000 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (REFUSES, "no system turn"),
        ("{% for", "no template that Jinja compiles"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_takes_no_row_is_said(model, tmp_path, template, reason):
    """The lengths were estimated, and the run refused the first row."""
    (model / "chat_template.jinja").write_text(template)
    data = write_chats(tmp_path / "c.jsonl", 64, system=True)
    notes = read_work(Request(model=str(model), data=data, task="sft")).data.notes
    assert any("takes none of the 64 conversations" in note and reason in note for note in notes), notes


def test_the_line_through_counted_examples():
    assert fit_tokens([40, 80, 120], [15, 25, 35]) == pytest.approx((0.25, 5))
    assert fit_tokens([40, 40], [10, 12]) == pytest.approx((0.275, 0))


def test_plain_text_of_less_than_a_batch_is_refused_where_it_was_counted(tmp_path, model):
    """27 sequences were planned as one step, and train.py refused them."""
    (tmp_path / "d.txt").write_text("the train is late\n" * 500)
    request = Request(model=str(model), data=str(tmp_path / "d.txt"), seq_len=64)
    with pytest.raises(SourceError, match="holds 31 sequences of 64 tokens, fewer than one global batch of 32"):
        read_work(request)
    assert note_few_blocks(read_work(replace(request, global_batch=31))) is None
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "d.txt").write_text("the train is late\n" * 400)
    assert "refuses fewer than one global batch of 32" in note_few_blocks(read_work(request))


@pytest.mark.parametrize(("ratio", "words"), [(1.04, "4% slower"), (3.14, "3.1 times slower"), (0.5, "2 times faster")])
def test_a_ratio_says_something(ratio, words):
    assert describe_ratio(ratio) == words


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**11 }}",
    ],
)
def test_a_template_without_end_is_no_plan_without_end(tmp_path, model, template):
    """A model of a stranger: its template has seconds and a part of the memory, and what it did not give is said."""
    (model / "chat_template.jinja").write_text(template)
    work = read_work(Request(model=str(model), data=write_chats(tmp_path / "c.jsonl", 64, system=True), task="sft"))
    assert not work.data.lengths_counted and "assumed" in work.data.length_source


def test_the_share_of_the_answers_is_counted_as_the_template_renders_them(tmp_path, model):
    data = write_chats(tmp_path / "d.jsonl", 50, system=True)
    request = Request(model=str(model), data=data, task="sft", hardware="cpu:4", offline=True)
    rows = [json.loads(line)["messages"] for line in Path(data).read_text(encoding="utf-8").splitlines()]
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)
    spoken = [turn["content"] for row in rows for turn in row if turn["role"] == "assistant"]
    answers = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in spoken)
    share = read_work(request).workload.trained_share
    assert share == pytest.approx(answers / sum(count_by_transformers(model, data)), abs=1e-4) and 0.3 < share < 0.6
    assert read_work(replace(request, loss_on="all")).workload.trained_share == 1.0


def test_what_all_conversations_begin_with_is_counted_without_its_last_token(tmp_path, model):
    """A system prompt and the header of a turn; that of the first words may be another token. No more than tokens have in common."""
    same = write_chats(tmp_path / "s.jsonl", 50, system=True)
    request = Request(model=str(model), data=same, task="sft", hardware="cpu:4", offline=True)
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line)["messages"] for line in Path(same).read_text(encoding="utf-8").splitlines()]
    ids = [tokenizer(tokenizer.apply_chat_template(row, tokenize=False), add_special_tokens=False) for row in rows]
    every = [one["input_ids"] for one in ids]
    common = next(n for n in range(1000) if any(row[n] != every[0][n] for row in every))
    shared = read_work(request).workload.shared_tokens
    assert common - 2 <= shared <= common and shared > 3
    assert read_work(replace(request, loss_on="all")).workload.shared_tokens == 0
    answer = [{"role": "user", "content": "Name it."}, {"role": "assistant", "content": "It is the sea."}]
    (tmp_path / "e.jsonl").write_text("\n".join([json.dumps({"messages": answer})] * 40))
    before = read_work(replace(request, data=str(tmp_path / "e.jsonl"))).workload.shared_tokens
    asked = tokenizer.apply_chat_template(answer, tokenize=False).partition(answer[1]["content"])[0]
    assert before == len(tokenizer(asked, add_special_tokens=False)["input_ids"]) - 1, "answers are learned from"


def write_answers(path: Path, asked: tuple[int, ...], further: dict | None = None) -> str:
    """One conversation for each number of words that are asked."""
    turns = [
        [{"role": "user", "content": "train " * n}, {"role": "assistant", "content": "late", **(further or {})}]
        for n in asked
    ]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in turns))
    return str(path)


def test_answers_that_all_begin_behind_the_length_are_refused(tmp_path, model):
    """A project was written of which data.py said that it has no trainable token."""
    data = write_answers(tmp_path / "d.jsonl", tuple(range(100, 140)))
    request = Request(model=str(model), data=data, task="sft", hardware="cpu:4", offline=True)
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line)["messages"] for line in Path(data).read_text(encoding="utf-8").splitlines()]
    texts = [tokenizer.apply_chat_template(row, tokenize=False) for row in rows]
    first = len(tokenizer(texts[0].partition("late")[0], add_special_tokens=False)["input_ids"])
    with pytest.raises(SourceError, match=rf"begin within {first} tokens; the first of them begins behind {first}"):
        read_work(replace(request, seq_len=first))
    assert read_work(replace(request, seq_len=first, loss_on="all")).workload.seq_len == first
    work = read_work(replace(request, seq_len=first + 1))
    assert "98% of the examples the answer begins behind" in (note_late_answers(work) or "")
    assert note_late_answers(read_work(replace(request, seq_len=first + 40))) is None


def test_a_turn_that_is_not_learned_is_no_share_of_what_is(tmp_path, model):
    """The answer that begins first is the first that is learned from."""
    shares = []
    for weight in (1, 0):
        given = write_answers(tmp_path / f"{weight}.jsonl", (5,) * 40)
        rows = [json.loads(line)["messages"] for line in Path(given).read_text(encoding="utf-8").splitlines()]
        rows = [[*row[:1], {**row[1], "weight": weight}, *row[:1], {**row[1], "content": "station"}] for row in rows]
        Path(given).write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
        data = read_work(Request(model=str(model), data=given, task="sft", offline=True)).data
        shares.append((data.answer_share, data.answer_starts[0]))
    assert shares[1][0] < shares[0][0] and shares[1][1] > shares[0][1]


CALL = {"content": "", "tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": {}}}]}
NAMED = {"content": "", "tool_calls": [{"type": "function", "function": {"name": "train", "arguments": {}}}]}
"""A word that the question has too."""


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({}, ()),
        (CALL, ("leaves out a call of 'look_up'", "40 of the 40", "--skip-bad")),
        (NAMED, ("leaves out a call of 'train'", "40 of the 40", "--skip-bad")),
        ({"reasoning_content": "a station"}, ("40 of the 40", "some of what the assistant thinks")),
    ],
)
def test_what_the_chat_template_leaves_out_is_said_before_the_project_is_written(tmp_path, model, further, words):
    data = write_answers(tmp_path / "d.jsonl", (5,) * 40, further)
    notes = read_work(Request(model=str(model), data=data, task="sft", offline=True)).data.notes[1:]
    assert len(notes) == bool(words) and all(word in notes[0] for word in words), notes


def test_what_a_row_gives_its_chat_template_is_counted(tmp_path, model):
    folder, given = model, {"custom_instructions": "train " * 50}
    (folder / "chat_template.jinja").write_text(
        "{{ custom_instructions }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    rows = [{"messages": [{"role": "user", "content": "train"}, {"role": "assistant", "content": "late"}]}] * 40
    lengths = []
    for row in ({}, {"chat_template_kwargs": given}):
        path = tmp_path / f"{len(lengths)}.jsonl"
        path.write_text("".join(json.dumps({**each, **row}) + "\n" for each in rows))
        data = read_work(Request(model=str(folder), data=str(path), task="sft", offline=True)).data
        lengths.append(data.token_quantiles[-1])
        assert ("chat_template_kwargs" in data.recognised.column_of) == bool(row)
    assert lengths[1] - lengths[0] >= 50


def test_the_marks_around_texts_are_counted_as_they_are_written(tmp_path, model):
    """A stream has what the tokenizer begins texts with, and an end; a classifier's text what the tokenizer puts around it."""
    processors = pytest.importorskip("tokenizers").processors
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(model / "tokenizer.json"))
    (tmp_path / "d.jsonl").write_text('{"text": "late", "label": "a"}\n{"text": "late", "label": "b"}\n' * 40)
    request = Request(model=str(model), data=str(tmp_path / "d.jsonl"), seq_len=2, offline=True)
    assert read_work(request).data.tokens == 80 * 2
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("<s>", "<end>")]
    for single, stream, classified in (("<s> $A", 3, 2), ("<s> $A <end>", 3, 3), ("$A <end>", 2, 2)):
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=marks)
        tokenizer.save(str(model / "tokenizer.json"))
        assert read_work(request).data.tokens == 80 * stream
        assert read_work(replace(request, task="text-classification")).data.tokens == 80 * classified
