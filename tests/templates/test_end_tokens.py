"""A classifier that answers at the end token gets texts with one each, and a line where they have none or two."""

from __future__ import annotations

import ast
import json
import sys
from types import SimpleNamespace as Values

import pytest
from projects import render_small_project

BART = {
    "architectures": ["BartForSequenceClassification"],
    "model_type": "bart",
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 300, "max_position_embeddings": 64},
    **{"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
}
ROWS = "\n".join(json.dumps({"text": f"a fox {n}", "label": "ab"[n % 2]}) for n in range(40))


def render(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    asked = {"task": "text-classification", "model": str(folder / "config.json")}
    return (render_small_project(folder, data=ROWS, name="d.jsonl", **asked) / "data.py").read_text()


def test_texts_without_one_end_token_are_named(tmp_path):
    text = render(tmp_path / "bart", BART)
    (check,) = (f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name == "check_end_tokens")
    names = {"sys": sys}
    exec(compile(ast.Module([check], []), "data.py", "exec"), names)
    tokenizer = Values(eos_token_id=2, eos_token="</s>", decode=str)
    names["check_end_tokens"]([[5, 6, 2], [7, 2]], tokenizer)
    for tokens, count in ([5, 6], 0), ([5, 2, 6, 2], 2):
        with pytest.raises(SystemExit, match=f"'</s>', of which every text must have one, and this has {count}"):
            names["check_end_tokens"]([tokens], tokenizer)


def test_no_other_classifier_looks_for_end_tokens(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = {"model_type": "bert", "vocab_size": 300, "max_position_embeddings": 64, **sizes}
    assert "check_end_tokens" not in render(tmp_path / "bert", bert)
