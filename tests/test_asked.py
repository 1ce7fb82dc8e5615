"""The request that a project keeps: the same can be asked again, defaults stay defaults, nothing of the machine is in it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from generator.case.request import Request
from generator.emit.asked import DEPENDENT, NAMES, find_config_edits, merge_requests, record_request, restore_request
from generator.errors import UsageError
from generator.run.plan_file import read_config


def keep(request: Request, folder) -> dict:
    """As plan.json has it."""
    return {"request": json.loads(json.dumps(record_request(request, folder)))}


@pytest.fixture
def places(tmp_path):
    (tmp_path / "inputs").mkdir()
    for name in ("d.jsonl", "config.json", "machine.json", "e.jsonl"):
        (tmp_path / "inputs" / name).write_text("{}")
    (tmp_path / "project").mkdir()
    return tmp_path / "inputs", tmp_path / "project"


def test_what_was_given_comes_back_and_nothing_else(places):
    inputs, project = places
    request = Request(
        model=str(inputs / "config.json"),
        data=str(inputs / "d.jsonl"),
        eval=str(inputs / "e.jsonl"),
        hardware=str(inputs / "machine.json"),
        task="causal-lm",
        packing=False,
        pins=(("compile", "off"),),
        columns=(("text", "a"),),
        learning_rate=1e-4,
        given=("model", "data", "eval", "hardware", "task", "packing", "pins", "columns", "learning_rate", "offline"),
        offline=True,
    )
    kept = keep(request, project)
    assert str(inputs.parent) not in json.dumps(kept) and kept["request"]["hardware"] == "../inputs/machine.json"
    assert kept["request"]["data"] is None, "config.yaml has it"
    config = {"model": "../inputs/config.json", "data": str(inputs / "d.jsonl"), "eval_data": "../inputs/e.jsonl"}
    again = restore_request(kept | {"config": config}, project)
    assert set(again.given) == set(request.given) - {"offline"} and "seq_len" not in again.given
    for field in fields(Request):
        if field.name not in ("given", "offline"):
            assert getattr(again, field.name) == getattr(request, field.name), field.name


def test_specs_ids_and_shares_are_no_paths(places):
    _, project = places
    request = Request(model="owner/name", data="owner/set", hardware="8xh100-sxm-80gb", eval="0.1")
    assert keep(request, project)["request"] == {
        "model": "owner/name", "data": "owner/set", "hardware": "8xh100-sxm-80gb", "eval": "0.1"
    }  # fmt: skip


def test_a_file_of_the_project_is_no_id(places, monkeypatch):
    _, project = places
    (project / "mine").write_text("text")
    monkeypatch.chdir(project)
    kept = keep(Request(data="mine"), project) | {"config": {"data": "mine"}}
    assert restore_request(kept, project).data == str(project / "mine")
    (project / "mine").unlink()
    with pytest.raises(UsageError, match=r"--data mine, and there is no .*mine"):
        restore_request(kept, project)
    assert restore_request(kept, project, ("data",)).data is None, "what is given anew need not be there"


def test_hints_of_the_same_data_stay(tmp_path):
    (tmp_path / "d.csv").write_text("a\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "d.csv")
    kept = Request(data=str(tmp_path / "d.csv"), text_column="a", given=("data", "text_column"))
    again = Request(data=str(tmp_path / "link.csv"), given=("data",))
    assert merge_requests(kept, again)[0].text_column == "a"


def test_a_file_that_nothing_names_must_be_given(places):
    inputs, project = places
    kept = keep(Request(hardware=str(inputs / "machine.json")), None)
    assert kept["request"] == {"hardware": None}
    for name in ("hardware", "model", "config"):
        with pytest.raises(UsageError, match=f"give --{name}"):
            restore_request({"request": {name: None}, "config": {}}, project)


@pytest.mark.parametrize(
    "request_part",
    [None, [], {"seq_len": "long"}, {"seq_len": -1}, {"epochs": 0.0}, {"pins": [["a"]]}, {"packing": 1}, {"data": 3}],
)
def test_what_nobody_can_have_asked_is_refused(places, request_part):
    with pytest.raises(UsageError):
        restore_request({"request": request_part}, places[1])


def test_what_is_asked_today_goes_before_what_was_asked():
    kept = Request(seq_len=128, global_batch=4, pins=(("compile", "off"), ("precision", "fp32")), allow=("a=b",),
                   given=("seq_len", "global_batch", "pins", "allow"))  # fmt: skip
    today = Request(seq_len=256, pins=(("compile", "default"),), allow=("c=d",), given=("seq_len", "pins", "allow"))
    merged, dropped = merge_requests(kept, today)
    assert (merged.seq_len, merged.global_batch, dropped) == (256, 4, ())
    assert merged.pins == (("compile", "default"), ("precision", "fp32")) and merged.allow == ("a=b", "c=d")
    assert set(merged.given) == {"seq_len", "global_batch", "pins", "allow"}


def test_a_dropout_of_none_is_asked_for_again():
    """`perfgen update` refused every project that was made with --lora-dropout 0."""
    for share in (0.0, 0.5):
        asked = Request(train="lora", lora_dropout=share, given=("train", "lora_dropout"))
        assert restore_request(keep(asked, None) | {"config": {}}, Path()) == asked
    for share in (1.0, -0.1):
        with pytest.raises(UsageError, match=r"lora_dropout is .*, and not from 0, below 1"):
            restore_request({"request": {"lora_dropout": share}, "config": {}}, Path())


def test_the_form_of_adapters_is_dropped_with_them():
    kept = Request(train="lora", adapter="dora", lora_dropout=0.1, given=("train", "adapter", "lora_dropout"))
    assert merge_requests(kept, Request(train="qlora", given=("train",)))[0].adapter == "dora"
    for today, forget in ((Request(train="full", given=("train",)), ()), (Request(), ("train",))):
        merged, dropped = merge_requests(kept, today, forget)
        assert (merged.adapter, merged.lora_dropout) == ("lora", 0.0)
        assert dropped == ("--adapter", "--lora-dropout")


def test_another_form_of_adapters_in_config_yaml_is_said():
    plan = {"config": {"lora": {"r": 16, "use_dora": True}}}
    (note,) = find_config_edits({"lora": {"r": 16, "use_dora": False}}, plan)
    assert note == "config.yaml says of lora that it is lora, and the plan is for dora: --adapter lora plans for that"
    (note,) = find_config_edits({"lora": {"r": 16, "use_dora": True, "use_rslora": True}}, plan)
    assert "dora and rslora" in note and "cannot be planned" in note
    assert find_config_edits(plan["config"], plan) == ()


def test_what_was_said_of_other_data_is_dropped_and_named():
    kept = Request(data="a.jsonl", text_column="body", seq_len=64, given=("data", "text_column", "seq_len"))
    merged, dropped = merge_requests(kept, Request(data="b.jsonl", given=("data",)))
    assert (merged.text_column, merged.seq_len, dropped) == (None, 64, ("--text-column",))
    assert merge_requests(kept, Request(data="a.jsonl", given=("data",)))[1] == ()


def test_what_is_forgotten_is_decided_anew():
    kept = Request(seq_len=64, hardware="1xt4", pins=(("a", "b"),), packing=False,
                   given=("seq_len", "hardware", "pins", "packing"))  # fmt: skip
    merged, _ = merge_requests(kept, Request(), ("seq_len", "hardware", "pin", "no_packing"))
    assert merged == Request()


def test_the_tables_name_fields():
    names = {field.name for field in fields(Request)}
    assert {*DEPENDENT, *NAMES.values(), *(other for others in DEPENDENT.values() for other in others)} <= names


def test_a_hand_edit_of_the_configuration_is_no_plan():
    plan = {"config": {"seq_len": 16, "training": {"learning_rate": 0.1}}}
    (note,) = find_config_edits({"seq_len": 20, "training": {"learning_rate": 0.1}, "lora": 3}, plan)
    assert note == "config.yaml says seq_len: 20, and the plan is for 16: --seq-len 20 plans for that"


def test_a_plan_for_inference_that_shall_train_needs_data():
    kept = Request(model="owner/name", mode="infer", given=("model", "mode"))
    with pytest.raises(UsageError, match="nothing to train on"):
        merge_requests(kept, Request(mode="train", given=("mode",)))
    kept = Request(model="owner/name", data="owner/set", given=("model", "data"))
    merged, dropped = merge_requests(kept, Request(mode="infer", given=("mode",)))
    assert (merged.data, dropped) == (None, ("--data",))


def test_a_machine_that_is_named_is_not_measured():
    kept = Request(measure=True, given=("measure",))
    assert merge_requests(kept, Request(hardware="1xt4", given=("hardware",)))[0].measure is False


def test_links_in_the_project_lead_to_what_was_named(places):
    inputs, project = places
    (project / "data").mkdir()
    (project / "data" / "d.jsonl").symlink_to(inputs / "d.jsonl")
    (project / "data" / "e.jsonl").symlink_to(inputs / "e.jsonl")
    for name, path in (("d.jsonl", inputs / "d.jsonl"), ("?.jsonl", inputs / "?.jsonl")):
        plan = {"request": {"data": None}, "config": {"data": f"./data/{name}"}}
        assert restore_request(plan, project).data == str(path)
    for name in ("d", "e"):
        (inputs / f"{name}.jsonl").unlink()
    with pytest.raises(UsageError, match=r"there is no .*inputs"):
        restore_request(plan | {"config": {"data": "./data/d.jsonl"}}, project)


def test_an_edit_that_the_next_plan_is_for_is_no_news():
    """`perfgen update --learning-rate 0.5` after config.yaml was edited to 0.5."""
    emitted, config = ({"config": {"training": {"learning_rate": r}}} for r in (0.1, 0.5))
    assert find_config_edits(config["config"], emitted, config) == ()
    (note,) = find_config_edits(config["config"], emitted, {"config": {"training": {"learning_rate": 0.2}}})
    assert note.endswith("and the plan is for 0.2: --learning-rate 0.5 plans for that")


def test_a_config_of_aliases_within_aliases_is_not_written_out(tmp_path):
    """A kilobyte of a stranger's config.yaml hung `perfgen why` and `update`."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "seq_len: *a9"]))
    (note,) = find_config_edits(read_config(tmp_path), {"config": {"seq_len": 512}})
    assert "no single value" in note and len(note) < 200


def test_the_length_of_trained_sequences_is_none_of_prompts():
    """`update --mode infer` planned for prompts as long as the training's sequences, and refused --prompt-tokens beside them."""
    kept = Request(model="owner/name", data="a.jsonl", seq_len=128, given=("model", "data", "seq_len"))
    today = Request(mode="infer", prompt_tokens=1024, given=("mode", "prompt_tokens"))
    merged, dropped = merge_requests(kept, today)
    assert (merged.seq_len, merged.prompt_tokens) == (None, 1024) and "--seq-len" in dropped
    assert merge_requests(kept, Request(mode="infer", given=("mode",)))[0].seq_len is None


def test_a_prompt_that_is_said_under_its_other_name_is_said_anew():
    """--seq-len and --prompt-tokens are one thing in --mode infer."""
    kept = Request(model="owner/name", mode="infer", prompt_tokens=512, given=("model", "mode", "prompt_tokens"))
    merged, _ = merge_requests(kept, Request(seq_len=1024, given=("seq_len",)))
    assert (merged.seq_len, merged.prompt_tokens) == (1024, None)
