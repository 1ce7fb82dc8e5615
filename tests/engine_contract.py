"""What every engine promises (templates/fragments/engines/transformers.py), run in an environment with its packages."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from batch_kills import compare_killed_job
from engine_projects import (
    FRAGMENTS,
    convert,
    drive,
    drop_weights,
    encode_questions,
    find_model,
    find_python,
    generate_eagerly,
    make_project,
    score_eagerly,
)
from serving_projects import BATCH


class EngineContract:
    """Greedy tokens are those of Transformers, alone and in a batch, whoever asks. A subclass names the engine.

    ``leaf`` is its file among templates/fragments/engines, ``serving`` what config.yaml says besides. Where another processor's kernels
    stand in for its own, and take a hundred times as long, a subclass asks for less of each."""

    leaf: ClassVar[str]
    questions: ClassVar[int] = 4
    new_tokens: ClassVar[int] = 64
    batch_rows: ClassVar[int] = 40
    serving: ClassVar[dict] = {}

    @pytest.fixture(scope="class")
    def python(self) -> Path:
        return find_python(f"serve-{self.leaf}")

    @pytest.fixture(scope="class")
    def model(self) -> Path:
        return find_model()

    @pytest.fixture(scope="class")
    def prompts(self, model) -> list[list[int]]:
        return encode_questions(model)[: self.questions]

    @pytest.fixture(scope="class")
    def project(self, python, model, tmp_path_factory) -> Path:
        made = make_project(tmp_path_factory.mktemp("p"), self.leaf, self.leaf.replace("_", "-"), model, **self.serving)
        if (made / "convert.py").exists():
            assert "MB" in convert(find_python(f"convert-{self.leaf}"), made)
        return made

    @pytest.fixture(scope="class")
    def eager(self, model, prompts) -> list[list[int]]:
        return generate_eagerly(model, prompts, self.new_tokens)

    def test_a_model_that_lacks_weights_is_not_converted(self, python, model, tmp_path):
        """Libraries beneath the converters make them up; their logs alone say so."""
        made = make_project(tmp_path / "p", self.leaf, self.leaf.replace("_", "-"), tmp_path / "m", **self.serving)
        if not (made / "convert.py").exists():
            pytest.skip("the engine reads the model's own files")
        shutil.copytree(model, tmp_path / "m")
        drop_weights(tmp_path / "m", "layers.1.")
        command = [find_python(f"convert-{self.leaf}"), "convert.py"]
        ended = subprocess.run(command, cwd=made, capture_output=True, text=True)
        assert (
            ended.returncode == 1 and "lacks 9 weights that its config.json tells of: model.layers.1." in ended.stderr
        )
        assert "Traceback" not in ended.stderr and not (made / "weights").exists()

    def test_greedy_tokens_are_those_of_transformers(self, python, project, prompts, eager):
        sampling = {"max_new_tokens": self.new_tokens, "ends": False}
        found = drive(python, project, "generate", prompts=prompts, sampling=sampling)
        assert found["alone"] == eager
        assert found["batches"] == [eager, eager]

    def test_a_text_is_as_likely_as_to_transformers(self, python, project, model, prompts, eager):
        texts = [prompt + answer[:24] for prompt, answer in zip(prompts, eager, strict=True)]
        found = drive(python, project, "score", texts=texts)["scores"]
        for scores, expected in zip(found, score_eagerly(model, texts), strict=True):
            assert scores == pytest.approx(expected, abs=2e-3)

    def test_an_answer_ends_at_the_end_of_a_turn(self, python, project, prompts, eager):
        stop = json.loads((find_model() / "config.json").read_text())["eos_token_id"]
        found = drive(python, project, "generate", prompts=prompts, sampling={"max_new_tokens": self.new_tokens})
        wanted = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in eager]
        assert any(stop in tokens for tokens in eager)
        assert found["alone"] == wanted

    def test_a_seed_decides_what_is_drawn(self, python, project, prompts):
        """The greatest too: of its last 32 bits llama.cpp draws another one each time."""
        drawn = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 0.9, "seed": (1 << 63) - 1, "ends": False}
        first, second = (drive(python, project, "generate", prompts=prompts[:2], sampling=drawn) for _ in range(2))
        other = drive(python, project, "generate", prompts=prompts[:2], sampling=drawn | {"seed": 8})
        assert first == second and first["batches"][0] != other["batches"][0]

    def test_a_temperature_near_zero_takes_the_likeliest(self, python, project, prompts, eager):
        """OpenVINO refused what is 0 in 32 bits, in words of its own source."""
        for temperature in (5e-324, 1e-40, 2e-5):
            cold = {"max_new_tokens": 16, "temperature": temperature, "seed": 7, "ends": False}
            found = drive(python, project, "generate", prompts=prompts[:2], sampling=cold)
            assert found["alone"] == [tokens[:16] for tokens in eager[:2]]

    def test_threads_share_a_batch(self, python, project, prompts, eager):
        most = min(32, self.new_tokens)
        found = drive(python, project, "share", prompts=prompts, new_tokens=most, threads=4)
        assert found["in_time"] and not found["late"] and len(found["rows"]) == 12
        for row in found["rows"]:
            wanted = eager[row["prompt"]][:most]
            assert row["finish"] == ("cancelled" if row["cancelled"] else "length")
            assert row["tokens"][:most] == wanted[: len(row["tokens"])]
            assert row["cancelled"] or row["tokens"] == wanted

    def test_others_run_while_a_prompt_is_read(self, python, project, prompts):
        """OpenVINO's step held Python's lock: /health, other answers and who had gone waited for all of a prompt."""
        found = drive(python, project, "beat", prompt=(prompts[0] * 20)[:480])
        assert found["longest_gap"] < found["seconds"] / 4

    def test_nothing_is_computed_for_those_who_have_gone(self, python, project, prompts):
        """llama.cpp's server read the prompts of all of them: after 200 it answered nobody for minutes."""
        found = drive(python, project, "leave", prompt=(prompts[0] * 20)[:300], count=24)
        assert found["after"] < 10 * found["alone"]

    def test_what_no_row_holds_is_refused_and_the_end_is_told(self, python, project, prompts):
        found = drive(python, project, "close", prompt=prompts[0])
        assert len(found["refused"]) == 3 and "max_context" in found["refused"][2]
        assert found["ended"] and found["finish"] == "cancelled" and 0 < found["tokens"] < 400

    def test_a_batch_that_is_killed_twenty_times_is_that_of_one_piece(self, python, project, tmp_path):
        """Greedy answers of the engine itself, each row once, byte for byte."""
        made = tmp_path / "p"
        shutil.copytree(project, made)
        for name, leaf in {**BATCH, "batch_work": "serving/batch_work/answers", "machine": "machine/cpu"}.items():
            shutil.copyfile(FRAGMENTS / f"{leaf}.py", made / f"{name}.py")
        config = yaml.safe_load((made / "config.yaml").read_text())
        config["serving"] |= {"max_new_tokens": 3, "prompt_tokens": 32, "name": "m"}
        (made / "config.yaml").write_text(yaml.safe_dump(config))
        source = tmp_path / "in.jsonl"
        texts = [f"{number} people {'and a child ' * (number % 5)}said" for number in range(self.batch_rows)]
        source.write_text("".join(json.dumps({"id": at, "prompt": text}) + "\n" for at, text in enumerate(texts)))
        killed = compare_killed_job(python, made, source, tmp_path, ["--shard_rows", "4"])
        rows = [json.loads(line) for line in killed.read_text().splitlines()]
        assert [row["id"] for row in rows] == list(range(self.batch_rows)) and all(row["answer"] for row in rows)
