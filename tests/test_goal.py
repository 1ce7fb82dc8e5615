"""Looking for a rented machine: the first one, in the goal's order, whose best plan meets the target."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner

from generator.case.request import Request
from generator.case.sources import read_work
from generator.cli import perfgen
from generator.decide import goal
from generator.decide.goal import Target
from generator.errors import NothingFits, UsageError
from generator.pipeline import find_machine

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def request_of(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def build(**options):
        return Request(model="m", config=str(tmp_path / "config.json"), offline=True, **options)

    return build


def offers(request, **target):
    progress, wanted = [], goal.Target(**target)
    goal.check_target(wanted, request)
    work = read_work(goal.use_whole_machine(request))
    tried = goal.list_concurrencies(request, wanted, work.workload)
    return goal.find_offers(work.spec, work.workload, wanted, progress.append, tried), progress


def test_the_cheapest_meets_the_target_and_all_cheaper_ones_do_not(request_of):
    request = request_of(seq_len=2048)
    dear, progress = offers(request, tokens_per_day=3e8)
    assert progress, "it tells which machine it costs"
    assert all(o.tokens_per_day >= 3e8 for o in dear)
    prices = [o.usd_per_hour for o in dear]
    assert prices == sorted(prices)
    cheaper, _ = offers(request, tokens_per_day=3e7)
    assert cheaper[0].usd_per_hour <= prices[0]
    for offer in cheaper:  # whatever costs less than the answer is too slow
        assert offer.usd_per_hour >= prices[0] or offer.tokens_per_day < 3e8


def test_a_training_without_a_target_is_cheapest_where_its_run_is(request_of):
    """It was ranked by the hour: five slow machines, and none on which the run costs less."""
    request = request_of(seq_len=2048)
    best, _ = offers(request)
    costs = [o.usd_per_million_tokens for o in best]
    assert costs == sorted(costs) and [o.usd_per_hour for o in best] != sorted(o.usd_per_hour for o in best)
    work = read_work(goal.use_whole_machine(request))
    others = (goal.make_offer(m) for m in goal.list_machines("cheapest", work.spec, work.workload) if m.nodes < 3)
    assert all(o is None or o.usd_per_million_tokens >= costs[0] for o in others)
    server, _ = offers(request_of(mode="infer", new_tokens=64, seq_len=512))
    assert [o.usd_per_hour for o in server] == sorted(o.usd_per_hour for o in server)


def test_beside_the_cheapest_server_stand_those_that_answer_sooner(request_of):
    """Where nobody said how soon: four machines with the same old board, of three clouds, stood before one that is four times as fast."""
    asked = {"mode": "infer", "new_tokens": 64, "seq_len": 512}
    open_ended, _ = offers(request_of(**asked))
    seconds = [o.latency_seconds for o in open_ended]
    assert len(seconds) > 2 and all(sooner <= 0.9 * later for later, sooner in pairwise(seconds))
    within, _ = offers(request_of(**asked), max_latency=seconds[0])
    assert within[0].hardware == open_ended[0].hardware
    assert len(within) == goal.SHOWN and within[1].usd_per_hour <= open_ended[1].usd_per_hour


def test_the_smallest_has_the_fewest_devices(request_of):
    smallest, _ = offers(request_of(seq_len=2048), goal="smallest", tokens_per_day=1e8)
    devices = [o.best.layout.devices for o in smallest]
    assert devices[0] == min(devices) == 1


def test_latency_is_that_of_an_answer_and_copies_serve_side_by_side(request_of):
    fast, _ = offers(request_of(mode="infer", new_tokens=64, seq_len=512), max_latency=2.0)
    assert all(o.latency_seconds <= 2.0 for o in fast)
    assert all(o.copies >= 1 for o in fast)


def test_a_server_has_as_many_answers_at_a_time_as_its_target_takes(request_of):
    """It was one a copy, unless --concurrency was given: a target took racks of machines, each of which served one person."""
    served = {"mode": "infer", "new_tokens": 64, "seq_len": 512}
    alone, _ = offers(request_of(**served))
    assert {o.concurrency for o in alone} == {1}
    day = 20 * alone[0].tokens_per_day
    many, _ = offers(request_of(**served), tokens_per_day=day)
    assert all(o.tokens_per_day >= day and o.concurrency in goal.AT_A_TIME for o in many)
    assert many[0].concurrency > 1
    asked, _ = offers(request_of(**served, concurrency=1), tokens_per_day=day)
    assert {o.concurrency for o in asked} == {1} and asked[0].usd_per_hour > many[0].usd_per_hour


def test_of_answers_at_a_time_the_fewest_are_taken_that_reach_the_target(request_of):
    target = Target("cheapest", 2e8, None)
    request = request_of(mode="infer", new_tokens=64, seq_len=512)
    found, record = find_machine(request, target, say=lambda line: None)
    best = record.offers[0]
    assert found.concurrency == best.concurrency > 1 and found.hardware == best.hardware
    fewer = max(n for n in goal.AT_A_TIME if n < best.concurrency)
    work = read_work(replace(request, concurrency=fewer))
    machine = next(m for m in goal.list_machines("cheapest", work.spec, work.workload) if m.name == best.hardware)
    assert goal.make_offer(machine).tokens_per_day < 2e8


def test_an_unreachable_target_names_the_best_there_is(request_of):
    with pytest.raises(NothingFits, match="the fastest") as refused:
        offers(request_of(seq_len=2048, global_batch=8), tokens_per_day=2e11)
    assert refused.value.code == 3


@pytest.mark.parametrize(
    ("framework", "error", "words"),
    [("tensorflow", UsageError, "--framework tensorflow is not for"), ("torch-tpu", NothingFits, "Accelerate")],
)
def test_where_no_machine_may_be_taken_the_reason_is_not_memory(request_of, framework, error, words):
    with pytest.raises(error, match=words):
        offers(request_of(framework=framework), goal="cheapest")


def test_wishes_that_contradict_each_other(request_of):
    with pytest.raises(UsageError, match="names one"):
        offers(request_of(hardware="1xt4"))
    with pytest.raises(UsageError, match="--max-latency is for answers"):
        find_machine(request_of(max_latency=1.0), Target("cheapest", None, 1.0), say=print)


def test_the_command_plans_for_the_machine_it_found(request_of, tmp_path):
    words = [
        "plan",
        "--model",
        "m",
        "--config",
        str(tmp_path / "config.json"),
        "--offline",
        "--seq-len",
        "2048",
        "--json",
    ]
    request_of()
    done = CliRunner().invoke(perfgen, [*words, "--target-tokens-per-day", "3e8"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["goal"]["offers"][0]["choice"] == plan["choice"]
    assert plan["estimate"]["tokens_per_second"] * 86400 >= 3e8
    assert plan["case"]["workload"]["optimize_for"]["value"] == "time", "the machine is paid whole"
