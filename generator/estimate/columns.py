"""The columns of a table of runs, as `perfgen estimate --help` shows them. What is not stated is left empty."""

from __future__ import annotations

NEEDED = ("phase", "model")
COLUMNS = {
    "phase": "train or infer",
    "model": "its name; of one that `perfgen models` knows the sizes need not be stated",
    "device": "a name that `perfgen devices` knows; device_memory_gb, gpus_per_node, nodes, network_gbit_s; device_text, with a limit such as (500 W)",
    "n_layers": "and hidden, vocab, n_heads, n_kv_heads, ffn_hidden, params_b (10^9); n_experts, experts_per_token",
    "weights_dtype": "float32, bfloat16, float16; autocast_dtype: none is pure; else precision_text, the source's own words",
    "strategy": "none, ddp, zero1 to zero3, fsdp2, fsdp_full_shard, hsdp, tensor_pipeline_data, …, with dp, tp, pp, cp, ep; else parallelism_text",
    "micro_batch": "per device; grad_accum, global_batch in sequences",
    "seq_len": "tokens (train); in_len, out_len (infer)",
    "train": "full, lora, qlora or dora; lora_rank, lora_targets, peft_text; quant, quant_text; variant",
    "activation_checkpointing": "none, full, or selective with checkpointing_text; attention, compile, fused_kernels, padding_free (true), optimizer, offload",
    "framework": "with software_date, notes and group: what ran it, when and where",
}
"""What is read, by the first of each line."""
ADDED = (
    "predicted_peak_mem_gb",
    "predicted_tokens_per_s_per_gpu",
    "predicted_tokens_per_s_low",
    "predicted_tokens_per_s_high",
    "predicted_fits",
    "basis",
    "error",
)
"""What is added. Memory in 10^9 bytes; low and high are P10 and P90 of the speed of one device, as published runs of the kind lay about
their estimates; ``error`` says why a row could not be costed."""
NUMBERS = ADDED[:4]


def describe_columns() -> str:
    """For the help of the command: kept as it stands by click."""
    width = max(map(len, COLUMNS)) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in COLUMNS.items()]
    needed = " and ".join(NEEDED)
    return "\n".join(["\b", f"Columns of CASES ({needed} must be there):", *lines, f"Added: {', '.join(ADDED)}"])
