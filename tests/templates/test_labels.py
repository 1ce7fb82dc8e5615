"""What is learned from a conversation, under the chat templates that models have (TRL's copies of them)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_data_formats import MODEL, draw_labels, make_tokenizer

from generator.emit.modules import LABELS

CALL = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
]
TURNS = [
    {"role": "user", "content": "Q1?"},
    {"role": "assistant", "content": "A one."},
    {"role": "user", "content": "Q2?"},
    {"role": "assistant", "content": "A two."},
]
WITH_TOOL = [
    TURNS[0],
    {"role": "assistant", "content": None, "tool_calls": CALL},
    {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "2"},
    {"role": "assistant", "content": "Two."},
]


def load_labels(load, form: str):
    load("token_edges")
    return load(LABELS[form], "labels")


def tokenize_one(leaf, example: dict, tokenizer, loss_on: str = "assistant") -> dict:
    (result,) = leaf.tokenize_batch([example], tokenizer, loss_on)
    if isinstance(result, ValueError):
        raise result
    return result


@pytest.fixture
def tokenize(load, tmp_path):
    """A conversation under one of TRL's templates: its drawn labels and how many turns are left out."""
    load("fields")
    make_example = load("examples/messages", "examples").make_example
    leaf = load_labels(load, "messages")

    def run(template: str, turns: list[dict], loss_on: str = "assistant", *, before: str = "", **row):
        import trl

        text = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
        text = before + text
        marks = dict.fromkeys(re.findall(r"<[^<>{}\s'\"]*[|｜][^<>{}\s'\"]*>|<[a-z]+_of_[a-z]+>", text))
        known = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        tokenizer = make_tokenizer(tmp_path / "tokenizer", text, tuple(m for m in marks if m not in known))
        tokenizer.bos_token = "<|endoftext|>"
        example = make_example({"messages": turns, **row}, {name: name for name in ("messages", *COLUMNS)})
        result = tokenize_one(leaf, example, tokenizer, loss_on)
        return draw_labels(result, tokenizer), result["left_out_turns"]

    return run


COLUMNS = ("tools", "chat_template_kwargs")
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
LLAMA = "<|endoftext|>" + "".join(
    HEADER.format(t["role"])
    + (f"»{t['content']}<|eot_id|>«" if t["role"] == "assistant" else t["content"] + "<|eot_id|>")
    for t in TURNS
)
CHATS = {
    "llama3": (LLAMA, 0),
    "phi3": (
        "<|user|>\nQ1?<|end|>\n<|assistant|>\n»A one.<|end|>«\n<|user|>\nQ2?<|end|>\n<|assistant|>\n"
        "»A two.<|end|>\n<|endoftext|>«",
        0,
    ),
    "qwen3": (  # what it would think is not written of the first answer, which is learned as it stands
        "<|im_start|>user\nQ1?<|im_end|>\n<|im_start|>assistant\n»A one.<|im_end|>«\n<|im_start|>user\nQ2?<|im_end|>\n"
        "<|im_start|>assistant\n»<think>\n\n</think>\n\nA two.<|im_end|>«\n",
        0,
    ),
    "glm4moe": (  # the end of an answer is the mark of the next turn, and stands behind the last one too
        "[gMASK]<sop><|user|>\nQ1?<|assistant|>»\n<think></think>\nA one.<|user|>«\nQ2?<|assistant|>"
        "»\n<think></think>\nA two.<|user|>«",
        0,
    ),
    "qwen3_training": (  # its own {% generation %}
        "<|im_start|>user\nQ1?<|im_end|>\n<|im_start|>assistant\n»<think>\n\n</think>\n\nA one.<|im_end|>«\n"
        "<|im_start|>user\nQ2?<|im_end|>\n<|im_start|>assistant\n»<think>\n\n</think>\n\nA two.<|im_end|>«\n",
        0,
    ),
}


@pytest.mark.parametrize("template", CHATS)
def test_every_turn_that_can_be_located_is_learned_with_its_end(tokenize, template):
    assert tokenize(template, TURNS) == CHATS[template]


PICTURES = ("idefics3", "llava_next", "smolvlm")
"""Templates that take contents in parts alone, and leave out a text."""
SYSTEM = {"role": "system", "content": "Be brief."}


def list_marked_templates() -> list[str]:
    import trl

    names = sorted(path.stem for path in (Path(trl.__file__).parent / "chat_templates").glob("*_training.jinja"))
    return [name for name in names if not name.startswith(PICTURES)]


@pytest.mark.parametrize("turns", [TURNS, [SYSTEM, *TURNS], TURNS[1:]], ids=["user", "system", "assistant first"])
@pytest.mark.parametrize("template", list_marked_templates())
def test_what_is_learned_is_what_trl_learns_under_its_own_marks(tokenize, tmp_path, template, turns):
    """But for white space behind an end of turn, which no model says."""
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    try:
        drawn, left_out = tokenize(template, turns)
    except ValueError as error:
        assert "the chat template refuses" in str(error)
        drawn = None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer", bos_token="<|endoftext|>")
    try:
        marked = tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    except TemplateError:
        assert drawn is None
        return
    pairs = zip(marked["input_ids"], marked["assistant_masks"], strict=True)
    labels = [token if learned else -100 for token, learned in pairs]
    theirs = draw_labels({"input_ids": marked["input_ids"], "labels": labels}, tokenizer)
    assert (drawn, left_out) == (re.sub(r"(\s+)«", r"«\1", theirs), 0)


def test_a_first_word_of_the_assistant_is_learned_where_an_end_is_written_before_the_next_turn_alone(tokenize):
    """GLM's: no prompt is before it, and what is written behind its words was compared with a text that has one end less."""
    begins = "[gMASK]<sop><|assistant|>\n<think></think>\n»A one.<|user|>«\nQ2?<|assistant|>"
    assert tokenize("glm4moe", TURNS[1:]) == (f"{begins}»\n<think></think>\nA two.<|user|>«", 0)


def test_all_tokens_but_the_first_are_learned_on_request(tokenize):
    drawn, left_out = tokenize("llama3", TURNS, "all")
    assert drawn == "<|endoftext|>»" + re.sub("[»«]", "", LLAMA).removeprefix("<|endoftext|>") + "«" and not left_out


def test_the_end_of_a_last_answer_is_learned_with_all_the_rest(tokenize):
    """GLM-4.5's template writes it as the mark of the next turn alone: conversations of one answer would never teach it."""
    drawn, _ = tokenize("glm4moe", TURNS[:2], loss_on="all")
    assert drawn.endswith("A one.<|user|>«")


def test_a_turn_of_weight_0_is_not_learned(tokenize):
    drawn, left_out = tokenize("llama3", [TURNS[0], {**TURNS[1], "weight": 0}, *TURNS[2:]])
    assert re.findall("»(.*?)«", drawn) == ["A two.<|eot_id|>"] and left_out == 0


def test_a_row_gives_its_template_what_trl_gives_it(tokenize):
    """smoltalk2's rows say whether they think: they were rendered as if they said nothing, and the empty thought was learned."""
    drawn, left_out = tokenize("qwen3", TURNS[:2], chat_template_kwargs={"enable_thinking": False, "unused": None})
    assert drawn.endswith("<think>\n\n</think>\n\n»A one.<|im_end|>«\n") and left_out == 0
    system = "{% if custom_instructions %}<|im_start|>system\n{{ custom_instructions }}<|im_end|>\n{% endif %}"
    given = {"custom_instructions": "Be brief."}
    drawn, left_out = tokenize("qwen2_5", TURNS, chat_template_kwargs=given, before=system)
    assert drawn.startswith("<|im_start|>system\nBe brief.<|im_end|>\n") and left_out == 0
    assert re.findall("»(.*?)«", drawn) == ["A one.<|im_end|>", "A two.<|im_end|>"]
    assert "Be brief." not in tokenize("qwen2_5", TURNS, before=system)[0]
    with pytest.raises(ValueError, match="'tokenize', which is no argument of a template"):
        tokenize("qwen2_5", TURNS, chat_template_kwargs={"tokenize": False})


def test_tool_calls_are_learned_and_their_results_are_not(tokenize):
    drawn, _ = tokenize("qwen2_5", WITH_TOOL, tools=json.dumps(TOOLS))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert re.findall("»(.*?)«", drawn, re.DOTALL) == [call, "Two.<|im_end|>"] and '"description": "d"' in drawn


@pytest.mark.parametrize(("template", "learned"), [("qwen3", 2), ("qwen3_5_think", 2), ("glm4moe", 2), ("gptoss", 2)])
def test_a_tool_call_is_learned_where_the_template_writes_it_otherwise_once_its_result_follows(
    tokenize, template, learned
):
    """Qwen3 opens a thought in the last turn alone: of a call with its result nothing was learned but the answer."""
    drawn, left_out = tokenize(template, WITH_TOOL, tools=TOOLS)
    turns = re.findall("»(.*?)«", drawn, re.DOTALL)
    assert len(turns) == learned and left_out == 0
    assert "add" in turns[0] and "2" not in turns[0] and turns[0].endswith(">") and "Two." in turns[1]


@pytest.mark.parametrize("template", ["qwen3", "glm4moe", "gptoss"])
def test_a_turn_whose_thought_is_dropped_once_others_follow_is_not_learned_without_it(tokenize, template):
    turns = [{**turn, "reasoning_content": "So I think."} if "A " in turn["content"] else turn for turn in TURNS]
    turns = [{**turn, "thinking": turn.get("reasoning_content")} for turn in turns]
    drawn, left_out = tokenize(template, turns)
    assert left_out == 1 and drawn.count("»") == 1 and drawn.index("A one.") < drawn.index("»") < drawn.index("A two.")


def test_a_template_that_writes_one_of_two_calls_is_refused(tokenize):
    """gpt-oss: the name of the second, which alone was looked for, stands in the first too."""
    calls = [CALL[0], {**CALL[0], "id": "c2", "function": {"name": "add", "arguments": '{"a": 5}'}}]
    two = [TURNS[0], {**WITH_TOOL[1], "tool_calls": calls}, WITH_TOOL[2], WITH_TOOL[2], WITH_TOOL[3]]
    with pytest.raises(ValueError, match="writes the first of 2 calls in a turn alone"):
        tokenize("gptoss", two, tools=TOOLS)
    drawn, left_out = tokenize("qwen3", two, tools=TOOLS)
    assert '"a": 5' in drawn and left_out == 0


@pytest.mark.parametrize(
    ("role", "remedy"), [("developer", "call it system, or train"), ("system", "write its words into the turn of user")]
)
def test_what_to_do_about_a_turn_that_a_template_leaves_out_is_said(load, role, remedy):
    load("fields")
    leaf = load_labels(load, "messages")
    given = [{"role": role, "content": "Be brief."}, *TURNS[:2]]
    with pytest.raises(ValueError, match=f"leaves out the turn of {role}: {remedy}"):
        leaf.check_rendered(given, {"tools": None}, "Q1? A one.", None)


def test_a_template_that_takes_arguments_as_a_text_alone_gets_one(load, tokenize):
    """DeepSeek V3's joins them to texts: what OpenAI's form has as a string was refused."""
    drawn, left_out = tokenize("deepseekv3", WITH_TOOL, tools=TOOLS)
    call, answer = re.findall("»(.*?)«", drawn, re.DOTALL)
    assert 'add\n```json\n{"a": 1}\n```' in call and "Two." in answer and left_out == 0


def test_a_template_that_drops_tool_calls_is_refused(tokenize):
    with pytest.raises(ValueError, match="leaves out a call of 'add'"):
        tokenize("llama3", WITH_TOOL, tools=TOOLS)


def test_a_template_that_drops_tool_calls_is_refused_though_the_name_stands_among_the_tools(tokenize):
    with pytest.raises(ValueError, match="leaves out a call of 'add'"):
        tokenize("lfm2", WITH_TOOL, tools=TOOLS)


def test_a_result_beyond_ascii_is_seen_where_the_template_writes_it_as_json(tokenize):
    """Llama 3.1 puts results through tojson, which leaves letters beyond ASCII as they are."""
    result = {**WITH_TOOL[2], "content": '{"city": "Zürich"}'}
    drawn, left_out = tokenize("llama3_1", [*WITH_TOOL[:2], result, WITH_TOOL[3]], tools=TOOLS)
    assert "Zürich" in drawn and drawn.count("»") == 2 and not left_out


@pytest.mark.parametrize(
    ("template", "answer", "lost"),
    [
        ("qwen3", {"content": "A.", "reasoning_content": "So I think."}, False),
        ("qwen3", {"content": "<think>\nSo I think.\n</think>\n\nA."}, False),
        ("qwen2_5", {"content": "A.", "reasoning_content": "So I think."}, True),
        ("qwen2_5", {"content": "<think>So I think.</think>A."}, False),
        ("deepseek_r1_distill", {"content": "<think>\nSo I think.\n</think>\n\nA."}, True),
        ("qwen2_5", {"content": "A."}, False),
        ("qwen2_5", {"content": "", "reasoning_content": "So I think.", "tool_calls": CALL}, True),
        ("llama3_1", {"content": "I shall add.", "tool_calls": CALL}, True),
        ("qwen2_5", {"content": "I shall add.", "tool_calls": CALL}, False),
    ],
)
def test_words_that_the_template_drops_are_counted(load, tmp_path, template, answer, lost):
    """A thought, or what is said beside a call, also of another turn than the last."""
    import trl

    load("fields")
    turns = [TURNS[0], {"role": "assistant", **answer}, *(WITH_TOOL[2:] if "tool_calls" in answer else [])]
    example = load("examples/messages", "examples").make_example({"messages": turns}, {"messages": "messages"})
    text = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    tokenizer = make_tokenizer(tmp_path / "tokenizer", text)
    tokenizer.bos_token = "<|endoftext|>"
    assert tokenize_one(load_labels(load, "messages"), example, tokenizer)["left_out_words"] == lost


def test_a_template_that_raises_is_named(tokenize):
    with pytest.raises(ValueError, match="refuses user assistant tool assistant"):
        tokenize("gemma", WITH_TOOL)


@pytest.mark.parametrize("code", ["1 / 0", "'%(a)s' % {}", "range(10 ** 9)", "'{}'.format()", "''.__class__.x", "x.y"])
def test_a_template_that_fails_is_named(load, tmp_path, code):
    """Jinja passes on whatever its code raises: ZeroDivisionError, KeyError, OverflowError, IndexError, …"""
    load("fields")
    tokenizer, load_row = make_tokenizer(tmp_path / "model"), load("examples/messages", "examples").make_example
    tokenizer.chat_template = "{{ " + code + " }}" + "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    example = load_row({"messages": TURNS}, {"messages": "messages"})
    with pytest.raises(ValueError, match=r"the chat template refuses user assistant user assistant: .*Error"):
        tokenize_one(load_labels(load, "messages"), example, tokenizer)
    for name in ("token_count", "run_report", "terminal", "first_example"):
        load(name)
    assert load("answers").split_row(example, tokenizer) is None


def test_a_template_without_an_end_of_turn_is_said(load, tmp_path, capsys):
    tokenizer = make_tokenizer(tmp_path / "plain")
    load("terminal")
    shown = load("first_example")
    ids = tokenizer("Paris is.")["input_ids"]
    shown.warn_of_open_end({"labels": ids, "full_length": len(ids)}, tokenizer)
    assert "nothing teaches the model to stop" in capsys.readouterr().out
    ids.append(tokenizer.convert_tokens_to_ids("<|im_end|>"))
    shown.warn_of_open_end({"labels": ids, "full_length": len(ids)}, tokenizer)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("packing", [False, True])
def test_truncation_and_packing_keep_labels_beside_their_tokens(load, tmp_path, packing):
    """Through SFTTrainer itself: every sequence that it makes of the examples has the labels they had."""
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    load("fields")
    make_example, leaf = load("examples/messages", "examples").make_example, load_labels(load, "messages")
    tokenizer = make_tokenizer(tmp_path / "t")
    chats = [[{**TURNS[0], "content": "Q" * n}, TURNS[1]] for n in range(1, 40)]
    rows = [
        tokenize_one(leaf, make_example({"messages": turns}, {"messages": "messages"}), tokenizer) for turns in chats
    ]
    seq_len = max(len(row["input_ids"]) for row in rows) - 4
    rows = [{name: row[name][:seq_len] for name in ("input_ids", "labels")} for row in rows]
    config = {k: v for k, v in MODEL.items() if k != "architectures"} | {"vocab_size": len(tokenizer)}
    args = SFTConfig(
        output_dir=str(tmp_path / "run"),
        max_length=seq_len,
        packing=packing,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    model = LlamaForCausalLM(LlamaConfig(**config))
    trainer = SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    made = []
    for row in trainer.train_dataset:
        lengths, start = row.get("seq_lengths") or [len(row["input_ids"])], 0
        for length in lengths:
            made.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    assert sorted(made) == sorted((row["input_ids"], row["labels"]) for row in rows)


@pytest.mark.parametrize("form", ["text", "prompt_completion"])
@pytest.mark.parametrize(
    ("bos", "eos"), [("", ""), ("<|im_start|>", ""), ("<|im_start|>", "<|endoftext|>"), ("", "<|endoftext|>")]
)
@pytest.mark.parametrize("written", [False, True])
def test_a_text_begins_and_ends_once(load, tmp_path, form, bos, eos, written):
    """Whether the tokenizer puts the marks there (LlamaTokenizer's add_eos_token), the text has them, or neither."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer(tmp_path / "t")
    tokenizer.bos_token = "<|im_start|>"
    marks = [(mark, tokenizer.convert_tokens_to_ids(mark)) for mark in (bos, eos) if mark]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A {eos}".strip(), special_tokens=marks
    )
    start, end = (bos, "<|endoftext|>") if written else ("", "")
    pair = {"prompt": f"{start}Paris", "completion": f" is.{end}"}
    example = pair if form == "prompt_completion" else {"text": f"{start}Paris is.{end}"}
    result = tokenize_one(load_labels(load, form), example, tokenizer)
    drawn = draw_labels(result, tokenizer)
    assert re.sub("[»«]", "", drawn) == f"{bos}Paris is.<|endoftext|>" and drawn.endswith("<|endoftext|>«")
    assert drawn.startswith(f"{bos}Paris» is.") or form == "text"


@pytest.mark.parametrize("form", ["messages", "prompt_completion", "text"])
@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_examples_in_a_batch_are_tokenized_as_each_alone(load, tmp_path, form, loss_on):
    """One that the template refuses stays in its place, and its neighbours keep theirs."""
    load("fields")
    leaf, tokenizer = load_labels(load, form), make_tokenizer(tmp_path / "t")
    questions = ["Q" * n for n in (1, 40, 3, 200, 2)]
    if form == "messages":
        load_row = load("examples/messages", "examples").make_example
        tokenizer.chat_template = (
            "{% if messages[0]['content'] == 'QQQ' %}{{ raise_exception('no') }}{% endif %}" + tokenizer.chat_template
        )
        examples = [
            load_row({"messages": [{**TURNS[0], "content": q}, *TURNS[1:]]}, {"messages": "messages"})
            for q in questions
        ]
    elif form == "prompt_completion":
        examples = [{"prompt": q, "completion": " is."} for q in questions]
    else:
        examples = [{"text": q} for q in questions]
    together = leaf.tokenize_batch(examples, tokenizer, loss_on)
    alone = [leaf.tokenize_batch([example], tokenizer, loss_on)[0] for example in examples]
    assert list(map(str, together)) == list(map(str, alone))
    assert [n for n, one in enumerate(together) if isinstance(one, ValueError)] == ([2] if form == "messages" else [])


def make_tokenizer_of_line_breaks(path: Path):
    """It writes two line breaks as one token where nothing follows, and as two before a word, as GPT-2's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["Question?\n\n", "\n\n", "Paris is.\n\n"] * 9, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    alone, before_a_word = (made(text)["input_ids"] for text in ("Question?\n\n", "Question?\n\nParis"))
    assert before_a_word[: len(alone)] != alone
    return made


@pytest.mark.parametrize("form", ["messages", "prompt_completion"])
@pytest.mark.parametrize("begins", [True, False])
def test_line_breaks_before_an_answer_are_the_prompt_s_whatever_tokens_they_are(load, tmp_path, form, begins):
    from tokenizers.processors import TemplateProcessing

    load("fields")
    leaf, tokenizer = load_labels(load, form), make_tokenizer_of_line_breaks(tmp_path / "t")
    if begins:
        mark = [("<s>", tokenizer.bos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=mark)
    start = "<s>" if begins and form == "prompt_completion" else ""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{{ '\n\n' if m['role'] == 'user' else eos_token }}{% endfor %}"
    )
    example = {"prompt": "Question?\n\n", "completion": "Paris is."}
    if form == "messages":
        turns = [{"role": "user", "content": "Question?"}, {"role": "assistant", "content": "Paris is."}]
        example = load("examples/messages", "examples").make_example({"messages": turns}, {"messages": "messages"})
    drawn = draw_labels(tokenize_one(leaf, example, tokenizer), tokenizer)
    assert drawn == f"{start}Question?\n\n»Paris is.</s>«"
