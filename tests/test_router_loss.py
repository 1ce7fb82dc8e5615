"""The loss that balances the experts of a mixture: which models have one, and that a training adds it once, as its mean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parent / "model"))  # small.py and variants.py lie there

import torch
from leaves import load_leaf
from small import small
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from variants import configs

from generator.inputs.meta_device import make_config
from generator.model import describe
from generator.model.families import GROUPS, find_family, load_families
from generator.model.routers import WITH_LOSS
from generator.techniques.router_loss import WEIGHED

KNOWN = {name for group in GROUPS for name in load_families(group) if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
WEIGHT = 0.5


def make_model(model_type: str):
    torch.manual_seed(0)
    config = configs(model_type)[0] if find_family(model_type) else small(model_type)
    return AutoModelForCausalLM.from_config(make_config(config)).train()


@pytest.mark.parametrize("model_type", sorted(WITH_LOSS))
def test_each_type_that_is_said_to_have_one_adds_it(model_type):
    model = make_model(model_type)
    tokens = torch.randint(4, 90, (2, 12))
    inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    torch.manual_seed(1)
    plain = model(**inputs).loss
    torch.manual_seed(1)
    output = model(**inputs, output_router_logits=True)
    assert output.aux_loss.requires_grad and model.router_aux_loss_coef == model.config.router_aux_loss_coef
    assert float(output.loss - plain) == pytest.approx(float(output.aux_loss) * model.router_aux_loss_coef, rel=0.02)


@pytest.mark.parametrize("model_type", sorted(KNOWN))
def test_no_other_type_of_the_tables_has_one(model_type):
    config = configs(model_type)[0]
    spec = describe(config, "x")
    assert spec.router_loss == (model_type in WITH_LOSS)
    if spec.experts and not spec.router_loss:
        module = sys.modules[type(make_model(model_type)).__module__]
        assert "router_aux_loss_coef" not in Path(module.__file__).read_text()


def test_every_type_whose_config_weighs_one_is_known():
    """SFTTrainer goes by the config: of a dense Granite 4 or Doge it would ask for the logits of routers that it has not."""
    weighed = set()
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if model_type != "gemma4_assistant":  # has no config of its own
            text = CONFIG_MAPPING[model_type]().get_text_config(decoder=True)
            weighed |= {model_type} if getattr(text, "router_aux_loss_coef", 0) else set()
    assert weighed == WEIGHED


# ---- what train.py adds


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}


def make_rows() -> list[dict]:
    """Of unequal length, padded on the right: two micro-batches learn from unequal counts of tokens."""
    torch.manual_seed(2)
    rows = []
    for length in (16, 9, 12, 5):
        tokens = torch.randint(4, 90, (16,))
        mask = torch.arange(16) < length
        rows.append({"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.where(mask, -100)})
    return rows


def make_trainer(model, folder: Path, weight: float | None, micro_batch: int = 2, **more) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=4 // micro_batch,
        max_steps=1,
        max_grad_norm=0.0,
        train_sampling_strategy="sequential",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        remove_unused_columns=False,  # by the names of a forward that may be the project's own
        **more,
    )
    rows = make_rows()
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[KeepGradients()])
    load_leaf("router_loss/trainer", "router_loss").add_router_loss(trainer, weight)
    return trainer


def compute_expected(model, weight: float, micro_batch: int = 2) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients and loss of the mean over tokens, and of the mean over micro-batches."""
    rows = make_rows()
    batches = [
        {key: torch.stack([row[key] for row in rows[start : start + micro_batch]]) for key in rows[0]}
        for start in range(0, 4, micro_batch)
    ]
    count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    model.router_aux_loss_coef = 0.0
    total = 0.0
    for batch in batches:
        output = model(**batch, num_items_in_batch=count, output_router_logits=True)
        loss = output.loss + weight * output.aux_loss / len(batches)
        loss.backward()
        total += float(loss)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return gradients, total


CASES = [
    *(
        (kind, forward)
        for kind in ("qwen3_moe", "mixtral")
        for forward in ("plain", "whole", "checkpointed", "chunked")
    ),
    *(pytest.param("qwen3_moe", forward, marks=pytest.mark.slow) for forward in ("compiled", "layers")),
]


@pytest.mark.parametrize(("model_type", "forward"), CASES)
def test_it_is_the_mean_over_micro_batches_and_counts_no_padding(tmp_path, model_type, forward):
    model = make_model(model_type)
    model.config.use_cache = False
    micro_batch = 4 if forward == "whole" else 2
    expected, loss = compute_expected(model, WEIGHT, micro_batch)
    if forward == "chunked":
        load_leaf("chunked_loss").chunk_loss(model)
    if forward == "layers":
        load_leaf("compiled_layers").compile_layers(model)
    if forward == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer = make_trainer(model, tmp_path, WEIGHT, micro_batch, torch_compile=forward == "compiled")
    trainer.train()
    callback = next(c for c in trainer.callback_handler.callbacks if isinstance(c, KeepGradients))
    gradients = {name.removeprefix("_orig_mod."): gradient for name, gradient in callback.gradients.items()}
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert logged["loss"] == pytest.approx(loss, rel=1e-4) and logged["aux_loss"] > 1


def test_an_evaluation_is_of_the_tokens_alone_and_the_config_stays(tmp_path):
    model = make_model("qwen3_moe")
    model.config.use_cache = False  # as Trainer sets it
    before = model.config.to_dict()
    trainer = make_trainer(model, tmp_path, WEIGHT)
    with_it = trainer.evaluate()["eval_loss"]
    assert with_it == pytest.approx(make_trainer(model, tmp_path, 0.0).evaluate()["eval_loss"], rel=1e-6)
    assert model.config.to_dict() == before


def test_the_weight_is_the_config_s_where_none_is_given_and_0_leaves_it_out(tmp_path):
    model = make_model("olmoe")
    assert make_trainer(model, tmp_path, None).router_aux_loss_coef == 0.01
    trainer = make_trainer(make_model("olmoe"), tmp_path, 0.0)
    trainer.train()
    assert "aux_loss" not in trainer.state.log_history[0] and not trainer.router_losses


def test_0_leaves_it_out_where_the_config_asks_for_it(tmp_path):
    """As that of a mixture which TRL has trained does."""
    losses = []
    for asked in (False, True):
        model = make_model("olmoe")
        model.config.output_router_logits = asked
        trainer = make_trainer(model, tmp_path, 0.0)
        trainer.train()
        losses.append((trainer.state.log_history[0]["loss"], trainer.evaluate()["eval_loss"]))
    assert losses[0] == losses[1]


def test_a_term_without_a_gradient_ends_the_process(tmp_path):
    """As that of a forward that computes its layers again, and keeps what was computed without a graph."""
    model = make_model("qwen3_moe")
    forward = model.forward

    def detached(**inputs):
        output = forward(**inputs)
        output.aux_loss = output.aux_loss.detach()
        return output

    model.forward = detached
    with pytest.raises(SystemExit, match="no gradient"):
        make_trainer(model, tmp_path, WEIGHT).train()
