"""Every empirical number of the cost model, with its unit, what it is based on and its source. Nothing else holds one.

A ``Constant`` computes as the float that it is. Its basis is one of ``BASES``: ``benchmarks/fit.py`` refits those that are
``FITTED`` (and no others, tests/cost/test_constants.py); "by hand" names the runs that it was tried on, with the commit above it. None belongs
to one model, one device or one row of a table. Tables of runs are named as their files are, without .csv.
What an optimizer keeps is in ``optimizers.py``, what a device reaches on paper in ``hwdetect/devices``.
"""

from __future__ import annotations

from collections.abc import Mapping

MEASURED = "measured by this project"
PUBLISHED = "published"
COUNTED = "counted in the code that runs"
FITTED = "fitted by benchmarks/fit.py"
BY_HAND = "fitted by hand"
ASSUMED = "assumed"
BASES = (MEASURED, PUBLISHED, COUNTED, FITTED, BY_HAND, ASSUMED)


class Constant(float):
    """A number with ``unit``, ``basis`` (one of ``BASES``) and ``source``: the table that fitted it, or where it was published."""

    __slots__ = ("basis", "source", "unit")

    def __new__(cls, value: float, unit: str, basis: str, source: str) -> Constant:
        constant = super().__new__(cls, value)
        constant.unit, constant.basis, constant.source = unit, basis, source
        return constant

    def __reduce__(self) -> tuple:
        """So that it can be copied."""
        return Constant, (float(self), self.unit, self.basis, self.source)


def state_by_key(values: Mapping, unit: str, basis: str, source: str) -> dict:
    """One source for the constants of several keys."""
    return {key: Constant(value, unit, basis, source) for key, value in values.items()}


# --- memory: what a process holds beside tensors ---------------------------------------------------------------------
CONTEXT_GIB = {
    "nvidia": Constant(
        0.55,
        "GiB",
        PUBLISHED,
        "CUDA context and kernels after the first matmul, torch 2.x (Transformers docs model_memory_anatomy)",
    ),
    **state_by_key(
        {"amd": 0.8, "intel": 0.6, "apple": 0.3, "default": 0.8},
        "GiB",
        ASSUMED,
        "context and kernels of a runtime other than CUDA: assumed, nothing was measured",
    ),
}
COMMUNICATOR_GIB = {
    "nvidia": Constant(
        0.5,
        "GiB",
        PUBLISHED,
        "NCCL channels and buffers of one communicator (nccl docs: 16 channels x 2 x 4 MiB and proxies)",
    ),
    **state_by_key(
        {"default": 0.5},
        "GiB",
        ASSUMED,
        "buffers of another maker's collectives: assumed to take what NCCL's do, nothing was measured",
    ),
}
PROCESS_GIB = Constant(
    0.67,
    "GiB",
    MEASURED,
    "resident size of Python with torch, transformers and a Trainer at work (benchmarks/results/cpu_runs.json)",
)
LOADING_PROCESS_GIB = Constant(
    0.38,
    "GiB",
    MEASURED,
    "resident size of Python with torch, transformers and a tokenizer before it reads a model: 0.382; SmolLM2-135M of 32 bits as bf16 then "
    "rises to 1.134, which is that with 0.501 of the file and 0.251 of copies, and falls to 0.634 (this project)",
)
ACCELERATOR_LIBRARIES_GIB = Constant(
    2.0, "GiB of host memory", ASSUMED, "CUDA libraries that a process on an accelerator loads beside its interpreter"
)
ENGINE_PROCESSES = Constant(
    2,
    "processes",
    PUBLISHED,
    "beside one for each GPU: the one that answers and the one that schedules "
    '(https://docs.vllm.ai/en/latest/configuration/optimization/: "CPU Resources for GPU Deployments")',
)
WORKER_GIB = Constant(0.35, "GiB", ASSUMED, "a forked worker with its own interpreter state")
SHARD_GIB = Constant(
    4.7, "GiB", PUBLISHED, "5 GB: the largest shard that save_pretrained writes (transformers docs, big_models)"
)
# since 20c8828
FRAGMENTATION = Constant(
    0.10,
    "share of what a step allocates and frees again",
    BY_HAND,
    "fitted: allocator peak of runs that fitted against those that ran out (fms-acceleration, A100-80GB)",
)
# since 1afef33
RETAINED_FRAGMENTATION = Constant(
    0.24,
    "the same, where block inputs and gradients outlive their block and leave holes (FSDP1 with frozen weights)",
    BY_HAND,
    "fitted: allocator peak of runs that fitted against those that ran out (fms-acceleration, A100-80GB)",
)
# since 62c2e7c
CPU_FRAGMENTATION = Constant(
    0.20,
    "share of what a step allocates and frees again",
    BY_HAND,
    "glibc malloc keeps freed arenas; resident over live bytes (fitted on benchmarks/results/cpu_runs.json)",
)
# since 62c2e7c
CPU_RECOMPUTED_RETAINED = Constant(
    0.34,
    "share of what recomputed blocks free, which stays resident: holes between the inputs that are kept",
    BY_HAND,
    "benchmarks/results/cpu_runs.json, its runs with checkpointing",
)

# --- memory: how weights are stored ----------------------------------------------------------------------------------
NF4_VALUE_BYTES = Constant(0.5, "bytes per weight", PUBLISHED, "four bits, without a scale (QLoRA paper, section 3)")
NF4_SCALE_BYTES = Constant(
    4 / 64, "bytes per weight", PUBLISHED, "bitsandbytes nf4: a float32 scale per block of 64 (QLoRA paper, section 3)"
)
NF4_DOUBLE_SCALE_BYTES = Constant(
    1 / 64 + 4 / (64 * 256),
    "bytes per weight",
    PUBLISHED,
    "bitsandbytes nf4: an 8-bit scale per block of 64, a float32 one per 256 of them (QLoRA paper, section 3)",
)
INT8_EXTRA_BYTES = Constant(
    4 / 4096,
    "bytes per weight",
    PUBLISHED,
    "LLM.int8(): a float32 scale per row, of 4096 inputs (Dettmers et al. 2022)",
)
GPTQ_EXTRA_BYTES = Constant(
    2 / 128 + 0.5 / 128,
    "bytes per weight",
    PUBLISHED,
    "GPTQ group size 128: a float16 scale and a 4-bit zero per group",
)
GGUF_Q4_BYTES = Constant(
    4.85 / 8,
    "bytes per weight",
    PUBLISHED,
    "llama.cpp Q4_K_M: 4.85 bits a weight over all tensors (its quantize README)",
)
GGUF_Q8_BYTES = Constant(
    34 / 32,
    "bytes per weight",
    PUBLISHED,
    "llama.cpp Q8_0: a float16 scale per block of 32 (ggml-common.h, block_q8_0)",
)
INT4_EXTRA_BYTES = Constant(
    4 / 32 + 0.5 / 32,
    "bytes per weight",
    PUBLISHED,
    "ONNX Runtime's MatMulNBits on a CPU: a float32 scale and a 4-bit zero per block of 32 (SmolLM2-135M: 86 MB)",
)
TORCHAO_INT8_EXTRA_BYTES = Constant(
    5 / 4096,
    "bytes per weight",
    COUNTED,
    "a float32 scale and an 8-bit zero per row, of 4096 inputs (torchao 0.18, int8_tensor.py: Int8Tensor.from_hp)",
)
TORCHAO_INT4_INPUTS = Constant(
    1024, "inputs", COUNTED, "a multiple of it is packed (torchao 0.18, int4_tile_packed_to_4d_tensor.py: from_hp)"
)
TINYGEMM_ROWS = Constant(
    16,
    "rows",
    COUNTED,
    "of a tile, for each of which 4-bit weights are unpacked (torch, int4mm.cu: kMTileSize of tinygemm_m16n8k16)",
)
TINYGEMM_PROMPT_RATE = Constant(
    1 / 6,
    "of the rate of large products in 16 bits",
    PUBLISHED,
    "between 1/7.9 (Qwen3-8B on an A100, 512 + 128 tokens of many: 1,276 for 10,091 tokens/s, https://github.com/pytorch/ao/issues/3496) "
    "and 1/4.6 (products of 1,764 rows on an RTX 4090 D: 1,246 for 273 ms)",
)
TORCHAO_INT4_EXTRA_BYTES = state_by_key(
    {128: 4 / 128, 32: 4 / 32},
    "bytes per weight, by the size of a group",
    PUBLISHED,
    "a 16-bit scale and zero per group (torchao's int4 weights: 128 by default; gpt-fast's: 32)",
)
MXFP4_EXTRA_BYTES = Constant(1 / 32, "bytes per weight", PUBLISHED, "OCP MX: an 8-bit exponent per block of 32")
NVFP4_EXTRA_BYTES = Constant(1 / 16, "bytes per weight", PUBLISHED, "NVFP4: an 8-bit float scale per block of 16")
QUANTIZED_CACHE_BYTES = Constant(
    0.5 + 2 * 2 / 64,
    "bytes per element of the key-value cache",
    PUBLISHED,
    "4 bits, a float16 scale and zero per group of 64 (transformers docs, kv_cache: QuantizedCache)",
)
FSDP_LIVE_BLOCKS = Constant(
    2,
    "blocks",
    PUBLISHED,
    "FSDP keeps the block in use and prefetches one (torch docs, FullyShardedDataParallel)",
)
ZERO_SUB_GROUP = Constant(
    1e9, "parameters", PUBLISHED, "sub_group_size: stage 3 updates as many at a time (deepspeed 0.19.8)"
)
NVME_STATE_BUFFERS = Constant(4, "buffers", PUBLISHED, "offload_optimizer.buffer_count (deepspeed 0.19.8)")
NVME_PARAM_BUFFERS = Constant(5e8, "elements", PUBLISHED, "offload_param.buffer_count x buffer_size (deepspeed 0.19.8)")
NVME_PARAMS_IN_MEMORY = Constant(1e9, "elements", PUBLISHED, "offload_param.max_in_cpu (deepspeed 0.19.8)")
ZERO_BUCKET_COPIES = Constant(
    4.5,
    "16-bit copies of each bucket",
    PUBLISHED,
    "overlap_comm holds 4.5 copies of both buckets (Transformers docs, deepspeed)",
)

REPEATED_BYTES = Constant(
    10,
    "bytes per hidden element and token that a block keeps outside of what tensor parts divide, in 16 bits",
    PUBLISHED,
    "sbh (10 + 24 / t) without sequence parallelism, sbh 34 / t with it (arXiv 2205.05198, equations 2 and 4)",
)
MIXER_GRADIENTS = state_by_key(
    {"gated-delta": 0.1, "mamba2": 0.65, "mamba2-without-norm": 0.95, "others": 0.35},
    "bytes of gradients alive while what mixes a hybrid's tokens is differentiated, for each byte that it keeps",
    MEASURED,
    "peaks of whole steps on fake tensors (tests/cost/test_traces.py); others than the named were traced for fewer sizes",
)

# --- memory: the loss ------------------------------------------------------------------------------------------------
CHUNK_TOKENS = Constant(
    1024, "rows of logits at a time", COUNTED, "the emitted chunk_loss (templates/fragments/chunked_loss.py)"
)
TILE_TOKENS = Constant(
    4096, "rows of logits at a time", COUNTED, "TRL's fused output layer (trl 1.16, chunked_logprob.py)"
)
TILE_VOCABULARY = Constant(
    32768, "columns of logits at a time", COUNTED, "TRL's fused output layer (trl 1.16, chunked_logprob.py)"
)
HELD_CHANCE = Constant(
    1e-5,
    "chance that the texts of a micro-batch, one after the other, have more tokens than memory is planned for",
    ASSUMED,
    "once in 100,000 micro-batches, by the lengths of the data: a run has fewer, or is resumed",
)
LARGEST_CHANCE = Constant(
    0.5614594836,
    "the mean of the largest of n draws is about what one draw passes with a chance of this over n",
    PUBLISHED,
    "Gumbel's law (1958), e to the minus Euler's constant; of normal draws within 3 % of their deviation, n from 2 to 64",
)
SHORT_TEXTS = Constant(
    0.1,
    "quantile of the lengths of the texts that are dealt out last, beside the longest",
    MEASURED,
    "within 14 % of what templates/fragments/balanced_processes.py deals out (tests/cost/test_lengths.py)",
)
TORCH_TILE_COPIES = Constant(
    4, "float32 copies of a tile", COUNTED, "where Triton does not fold it: traced (tests/cost/test_traces.py)"
)

# --- compute: matrix products ----------------------------------------------------------------------------------------
GEMM_CEILING = state_by_key(
    {
        "volta": 0.83,
        "turing": 0.72,
        "ampere": 0.869,
        "ada": 0.85,
        "hopper": 0.803,
        "blackwell": 0.776,
        "cdna2": 0.768,
        "cdna3": 0.56,
        "cdna4": 0.68,
        "gaudi2": 0.969,
        "gaudi3": 0.741,
    },
    "largest share of the dense 16-bit peak that a matrix product reached, by architecture",
    PUBLISHED,
    "maximum achievable matmul rate (stas00/ml-engineering, compute/accelerator); share reached in runs fitted",
)
GEMM_CEILING["default"] = Constant(
    0.75,
    "the same, of any other",
    ASSUMED,
    "no product of this architecture was measured: the share of its peak is assumed, about the median of the others",
)
WATTS_PER_TFLOPS = state_by_key(
    # Ada: L40S has 0.97 and reaches 0.62 of its peak, not 0.85
    {"ampere": 1.28, "ada": 2.5, "hopper": 0.708, "blackwell": 0.444, "default": 0.0},
    "watts per 10^12 operations per second of the dense 16-bit peak with which products reach GEMM_CEILING; 0: not known",
    PUBLISHED,
    "data sheets of A100 SXM, H100 SXM, B200, on which the ceilings were found; Ada's by the rate of the L40S"
    " (benchmarks/published_operators.py)",
)
GEMM_UNTHROTTLED = Constant(
    0.92,
    "share of the dense 16-bit peak that a product reaches where power does not hold it back",
    PUBLISHED,
    "cuBLAS on an RTX 3090, 5376 x 5376 x 2048: 65.5 of 71.2 TFLOP/s (3 times the watts per operation of an A100); train_fsdp_qlora",
)
AMPLE_POWER = Constant(
    3.0,
    "times WATTS_PER_TFLOPS from which nothing is held back",
    ASSUMED,
    # between RTX PRO 6000 (2.7, which reaches GEMM_CEILING) and RTX 3090 (3.8)
    "GeForce and boards whose rate is halved for export have 3.4 to 7 times, all others less than 2.7",
)
GEMM_REALISED = Constant(
    0.8496,
    "share of the ceiling that training's products reach (power limit, tile quantization)",
    FITTED,
    "train_fms_acceleration, train_llmfoundry_mpt, more/train_small_sources, more/train_torchtitan",
)
PRODUCT_SECONDS = Constant(
    3e-6,
    "seconds of a product beside its arithmetic and its matrices: filling the multiprocessors, and leaving them one by one",
    PUBLISHED,
    # with 512 rows and more, mean error over A100, H100, H200, B200, L40S and RTX PRO 6000: 8.8 %, 12.0 without, 9.1 with 4 us
    "aiconfigurator-core 0.12.0, bfloat16 products of torch (the tables of benchmarks/published_operators.py)",
)
UNALIGNED_PRODUCT = state_by_key(
    # by the largest power of two, up to 16, that divides a row's bytes
    {16: 1.0, 8: 1.35, 4: 1.9, 2: 2.4},
    "times as long as a product whose rows of results begin at multiples of 16 bytes",
    BY_HAND,
    # 50257 / tp words: a pass through the output layer of width 2,048 and 8 sequences took 72, 15, 12 and 8 ms of 1, 2, 4 and 8 parts
    "more/train_vtrain_megatron_a100 (50,257 words in 1, 2, 4 and 8 parts: rows of 2, 16, 8 and 4 bytes' alignment)",
)
GROUPED_REALISED = Constant(
    0.75,
    "rate of a grouped product of routed experts over that of one product of the same rows",
    PUBLISHED,
    # with 256 rows an expert and more, balanced and not: 0.73 to 0.85 on H100, 0.67 to 0.90 on H200, 0.62 to 0.82 on B200
    "aiconfigurator-core 0.12.0, vLLM's bfloat16 mixtures of experts, beside this model's products",
)
FP8_REALISED = Constant(
    0.78,
    "share of its peak that an 8-bit product reaches over that of a 16-bit one",
    PUBLISHED,
    # 0.67, 0.78, 0.69, 0.81 and 0.90 on H100, H200, B200, L40S and RTX PRO 6000, products of 4096 and more each way
    "aiconfigurator-core 0.12.0, vLLM's scaled products (the tables of benchmarks/published_operators.py): the median of five boards",
)
FP4_REALISED = Constant(
    0.66,
    "share of its peak that a 4-bit product (nvfp4) reaches over that of a 16-bit one",
    PUBLISHED,
    # 0.61 to 0.70 on B200, B300 and GB200, 0.74 on RTX PRO 6000, products of 4096 and more each way
    "aiconfigurator-core 0.12.0, vLLM's, SGLang's and TensorRT-LLM's products: the median of four boards",
)
FP32_REALISED = state_by_key(
    {"m1": 0.7, "m2": 0.7, "m3": 0.9, "m4": 0.9},
    "share of the float32 rate that products reach, by architecture",
    BY_HAND,
    # M1 Max 0.65 of a prompt in 2024, 0.82 in 2026; M1 Pro 0.78, M1 Ultra 0.77, M2 Pro 0.63, M2 Max 0.66 by MLX
    "benchmarks/local.csv: prompts of llama.cpp and MLX; MLX's linear layers by TristanBilot/mlx-benchmark (85c5376)",
)
FP32_REALISED["default"] = Constant(
    0.9, "the same, of any other", ASSUMED, "as GEMM_REALISED, without a tensor core's ceiling"
)
EMULATED_BF16 = Constant(
    2, "times float32's time, where a device has no bf16", ASSUMED, "products run in float32 between two conversions"
)
UNKNOWN_FLOPS = Constant(
    1e13, "16-bit operations per second", ASSUMED, "a board with no rate in its file or data sheet"
)
VECTOR_SHARE = Constant(
    1 / 16, "float32 rate over the 16-bit rate of products", PUBLISHED, "A100: 19.5 of 312 TFLOP/s (NVIDIA data sheet)"
)
UNKNOWN_BYTES_PER_S = Constant(
    5e11, "bytes per second of device memory", ASSUMED, "a board of which no bandwidth is known"
)

# --- compute: attention ----------------------------------------------------------------------------------------------
_FLASH = "FlashAttention-2's own rate is benchmarks/published_operators.py's, causal prefill with heads of 128"
_FLASH_UNIT = (
    "share of the dense 16-bit peak that FlashAttention-2 reaches with long sequences (sdpa uses the same), causal"
)
_WARP = "FlashAttention-2 uses Ampere's instructions: 35 % of an H100 (FlashAttention-3's paper, arXiv 2407.08608, abstract)"
FLASH_FORWARD = {
    # 0.571, 0.503 and 0.605 of the peaks of A100, L40S and RTX PRO 6000
    "default": Constant(0.57, _FLASH_UNIT, PUBLISHED, _FLASH),
    "9": Constant(0.35, _FLASH_UNIT, PUBLISHED, _WARP),
    "10": Constant(0.25, _FLASH_UNIT, ASSUMED, "as on Hopper, of a peak 2.3 times as high"),
}
FLASH_BACKWARD_SHARE = Constant(
    63 / 73,
    "rate of FlashAttention-2's backward pass over the forward pass",
    PUBLISHED,
    "63 and 73 % of the A100's peak (its paper, sections 1 and 4)",
)
FLASH_HALF_LENGTH = Constant(
    480,
    "tokens at which FlashAttention-2 reaches half of its rate",
    PUBLISHED,
    "benchmarks/published_operators.py, causal prefill of 512 to 16384 tokens on A100, L40S and RTX PRO 6000: within 5 %",
)
FLASH3_FORWARD = state_by_key(
    {"9": 0.66, "10": 0.57},
    "share of the dense 16-bit peak that kernels written for the architecture reach with long sequences, causal",
    PUBLISHED,
    "benchmarks/published_operators.py: FlashAttention-3 on H100 and H200, TensorRT-LLM's kernel on B200",
)
FLASH3_BACKWARD_SHARE = Constant(
    0.8,
    "rate of its backward pass over the forward pass",
    PUBLISHED,
    "its backward pass is 1.5 to 1.75 times as fast as FlashAttention-2's (FlashAttention-3 paper, abstract of section 4)",
)
FLASH3_HALF_LENGTH = Constant(
    1000,
    "tokens at which it reaches half of its rate",
    PUBLISHED,
    "benchmarks/published_operators.py, causal prefill of 512 to 16384 tokens on H100 and H200: within 4 %",
)
_CUDNN = "benchmarks/results/gpu_day_h200.json: scaled_dot_product_attention of PyTorch 2.11, causal, heads of 128, 512 to 32768 tokens"
_CUDNN_UNIT = "share of the dense 16-bit peak that cuDNN's attention reaches with long sequences, causal"
CUDNN_FORWARD = {
    "9": Constant(0.66, _CUDNN_UNIT, MEASURED, _CUDNN),
    "10": Constant(0.57, _CUDNN_UNIT, ASSUMED, "that of TensorRT-LLM's kernel on B200 (FLASH3_FORWARD)"),
}
CUDNN_BACKWARD_SHARE = Constant(
    0.85, "rate of its backward pass over the forward pass, long sequences", MEASURED, _CUDNN
)
CUDNN_HALF_LENGTH = Constant(400, "tokens at which its forward pass reaches half of its rate", MEASURED, _CUDNN)
CUDNN_BACKWARD_HALF_LENGTH = Constant(
    800, "tokens at which its backward pass reaches half of its rate", MEASURED, _CUDNN
)
BIASED_ATTENTION = Constant(
    0.6105,
    "share of its rate that an attention kernel reaches where it adds a bias to the scores (ALiBi)",
    FITTED,
    "train_llmfoundry_mpt",
)
EAGER_SCORE_BYTES = Constant(
    16, "bytes per score beside 6 passes in its dtype", COUNTED, "float32 softmax: cast, read, write, cast back"
)
EAGER_SCORE_PASSES = Constant(
    6,
    "reads and writes of a score in its dtype",
    COUNTED,
    "scale, mask, dropout of eager_attention_forward (transformers)",
)
FUSED_SCORE_PASSES = Constant(
    6.5,
    "reads and writes of a score, forward, with fused scale, mask and softmax (Megatron-LM)",
    COUNTED,
    # left to a fit 7.2 to 7.8
    "written by the product, read and written by the softmax, read and written by dropout with its mask of a byte, read by the product",
)

# --- compute: elementwise traffic ------------------------------------------------------------------------------------
BANDWIDTH_REALISED = Constant(
    0.785,
    "share of the data-sheet bandwidth that elementwise kernels reach",
    FITTED,
    # most of all infer_optimum_benchmark_llama, more/infer_gptfast, more/infer_llamacpp_gpu_bench; MI300X copies 4.1 of 5.3
    # TB/s, which is the same share (stas00/ml-engineering)
    "bytes moved over data-sheet bandwidth, share reached fitted",
)
_SERVING = (
    "benchmarks/served.csv: vLLM of 2024 to 2026 on one device and over direct links (benchmarks/served.py --fit)"
)
READ_REALISED = Constant(
    0.913,
    "share of the data-sheet bandwidth at which an engine's replayed step reads weights, keys and values",
    FITTED,
    _SERVING,
)
NORM_PASSES = Constant(
    7,
    "float32 values read and written per element",
    COUNTED,
    "Transformers' RMSNorm: cast, square, mean, scale, cast, weight",
)
ROTARY_PASSES = Constant(
    10,
    "values read and written per element",
    COUNTED,
    "apply_rotary_pos_emb: two products, rotate_half, a sum (transformers)",
)
LOSS_BYTES = Constant(
    40,
    "bytes read and written per logit",
    COUNTED,
    "cast, log-softmax, its gradient, cast back (transformers loss_utils)",
)
FUSED_LOSS_BYTES = Constant(
    14,
    "bytes read and written per logit",
    COUNTED,
    "the same with the gradient written in place (Liger, fms-acceleration)",
)
NATIVE_LOSS_BYTES = Constant(
    18,
    "bytes read and written per logit of 16 bits",
    COUNTED,
    # the shift copies, log-softmax and its gradient write anew, the shift's gradient is zeros and a copy
    "nine reads and writes of a loss that casts nothing (transformers 4.4x, GPT-2 and its relatives)",
)
VOCAB_PARALLEL_LOSS_BYTES = Constant(
    52,
    "bytes read and written per logit of 16 bits",
    COUNTED,
    # forward 38: cast 6, maximum 4, difference 8, exponential 8, sum 4, quotient 8; backward 14: scaled 8, cast back 6
    "Megatron-LM's and nanotron's cross-entropy in float32 (tensor_parallel/cross_entropy.py)",
)
BACKWARD_TRAFFIC = Constant(
    1.77,
    "elementwise bytes of the backward pass over those of the forward pass",
    FITTED,
    "more/train_nanotron_h100, train_fms_acceleration",
)
L2_GAIN = state_by_key(
    # 16 MiB against 64: 2,167 and 1,200 GB/s on an A100, 3,645 and 820 on a 4090
    {"ada": 4.4, "default": 1.8},
    "speed of a copy within the L2 cache over one within memory",
    PUBLISHED,
    "copies of 2 to 64 MiB on A100 PCIe and RTX 4090 (github.com/smallscientist1/cuda_microbenchmark)",
)
UNKNOWN_L2_SECONDS = Constant(
    15e-6,
    "seconds of the memory's bandwidth that an L2 cache of which nothing is known holds",
    ASSUMED,
    "A100, H100 and B200 have 21, 16 and 17 microseconds of theirs",
)
# since 2fda807
L2_TENSORS = Constant(
    8,
    "tensors that must share the L2 cache",
    BY_HAND,
    "train_optimum_benchmark_llama, more/train_nanotron_h100",
)
FLOAT8_CAST_BYTES = Constant(
    5,
    "bytes per element of a product's input",
    COUNTED,
    "read for its largest magnitude, read and written to be scaled and cast (torchao.float8, tensorwise)",
)
# since 9ab1ecb
ROUTING_PASSES = Constant(
    28.16,
    "reads and writes of a token's hidden state per expert it goes to, experts one by one",
    BY_HAND,
    "train_fms_acceleration's Mixtral rows",
)
GROUPED_ROUTING_PASSES = Constant(
    10, "the same, experts as one grouped product", COUNTED, "sort, gather, two scalings, scatter (transformers moe.py)"
)
EXCHANGE_ROUTING_PASSES = Constant(
    13,
    "what experts on several devices add to that",
    COUNTED,
    # gathered for the exchange, put back in order, scaled and summed (7); three masks, of which one of the wide product (5); a sum
    # over the one expert that each exchanged row has (1)
    "AllToAllEP and grouped_mm_experts_forward (transformers 5.23, expert_parallel.py and moe.py)",
)
COMPILE_TRAFFIC_SHARE = Constant(
    0.45,
    "elementwise bytes left by Inductor",
    PUBLISHED,
    "Inductor fuses elementwise chains: share of bytes and launches left (torch.compile paper, table 3)",
)

# --- compute: quantized weights and adapters -------------------------------------------------------------------------
DEQUANT_BYTES = Constant(
    3, "bytes moved per nf4 weight", COUNTED, "half a byte read, 2 written, 0.5 of scales and re-read (bitsandbytes)"
)
DEQUANT_REALISED = Constant(
    0.1862,
    "share of the bandwidth",
    FITTED,
    "bitsandbytes dequantize kernel, share of bandwidth fitted on QLoRA runs (fms-acceleration)",
)
PLAIN_DEQUANT_REALISED = Constant(
    0.4269,
    "the same, of scales that are not quantized themselves",
    FITTED,
    "infer_optimum_benchmark_llama, bitsandbytes' 4 bits with 2 to 16 rows",
)
# since 1d20fea
FUSED_ADAPTER_TRAFFIC = Constant(
    0.4,
    "bytes left by fms-acceleration's fused LoRA",
    BY_HAND,
    "train_fms_acceleration's rows with foak and QLoRA",
)
ADAPTER_DROPOUT_BYTES = Constant(
    9, "bytes per input element", COUNTED, "dropout's mask and product, forward (torch native_dropout, float32)"
)

# --- issuing work ----------------------------------------------------------------------------------------------------
LAUNCH_SECONDS = Constant(
    1.666e-05,
    "seconds of host time per operator of a forward pass",
    FITTED,
    # infer_optimum_benchmark_llama, more/infer_hf_docs_sdpa, more/train_vtrain_megatron_a100
    "host time to issue one operator of a forward pass, and the backward pass over the forward one; fitted",
)
BACKWARD_LAUNCH_SHARE = Constant(
    3.003,
    "host time of the backward pass over that of the forward pass",
    FITTED,
    "more/train_vtrain_megatron_a100, train_optimum_benchmark_llama, more/train_hf_docs",
)
OVERLAP_POWER = Constant(
    3,
    "p of (host^p + device^p)^(1/p): how sharply a step goes from bound by issuing to bound by the device",
    BY_HAND,
    # fits with 2.5, 3, 3.5 and 6 leave losses of 0.0980, 0.0980, 0.0985 and 0.1005, left to themselves 2.3 to 2.7
    "more/train_vtrain_megatron_a100, train_optimum_benchmark_llama, more/train_hf_docs: the most that costs the fit nothing",
)
TENSOR_OVERLAP_POWER = Constant(
    2.1,
    "the same of tensor parts, which wait for the slowest host of all at four sums in each block",
    BY_HAND,
    # fits with 1.8, 2.1, 2.2 and 2.4 leave losses of 0.0948, 0.0947, 0.0946 and 0.0948; left to itself 2.4
    "more/train_vtrain_megatron_a100, more/train_nanotron_h100",
)
_PROFILED = "profiles of Transformers 5 blocks (a Llama block issues about 46 operators, an OPT block 22)"
BLOCK_OPERATORS = Constant(11, "operators per block beside those that follow", COUNTED, _PROFILED)
AUTOCAST_OPERATORS = Constant(
    2,
    "casts per linear, of its input and of its weight, and one more of a bias",
    COUNTED,
    "what a block dispatches under autocast and without (Llama 14 more, BERT 21; transformers 5.23, torch 2.13)",
)
OUTSIDE_OPERATORS = Constant(
    30,
    "operators of a forward pass outside of the blocks: embedding, mask, rotary tables, last norm, output layer, loss",
    COUNTED,
    "what Llama (29, 32 under autocast) and GPT-2 (23, 26) dispatch, by the difference of 2 and 4 blocks (transformers 5.23)",
)
RMS_NORM_OPERATORS = Constant(6, "operators per RMSNorm that is not fused", COUNTED, _PROFILED)
ROTARY_OPERATORS = Constant(14, "operators per rotary embedding of queries and keys", COUNTED, _PROFILED)
FUSED_ROTARY_OPERATORS = Constant(2, "the same, fused", COUNTED, _PROFILED)
VARLEN_OPERATORS = Constant(
    2,
    "operators whose time a call of varlen_attn takes beyond sdpa's: it is a custom operator of Python",
    MEASURED,
    "an operator of its signature on one Zen 5 core, torch 2.13: 80 µs forward, 157 with backward; SDPA's 8 and 63 (this project)",
)
EAGER_SCORE_OPERATORS = Constant(6, "operators per eager attention beyond sdpa's", COUNTED, _PROFILED)
FUSED_BLOCK_OPERATORS = Constant(
    45.46,
    "operators that a pre-training framework's fused block takes as long as",
    FITTED,
    "more/train_vtrain_megatron_a100: wrappers of custom kernels, random-number bookkeeping",
)
EXPERT_LOOP_OPERATORS = Constant(
    6, "operators per expert, one by one", COUNTED, "MixtralSparseMoeBlock, Transformers 4"
)
GROUPED_EXPERT_OPERATORS = Constant(
    20, "operators per block", COUNTED, "sort, gather, grouped products (transformers moe.py)"
)
NORM_COPIES = Constant(
    4.0,
    "float32 copies of a weight",
    COUNTED,
    "alive together in peft's DoraLinearLayer.get_weight_norm: the low-rank product, the weight, the scaled product, their sum",
)
NORM_TRAFFIC = Constant(
    38.0,
    "bytes read and written per weight",
    COUNTED,
    "peft's DoraLinearLayer: cast 2 + 4, low-rank product 2 and its cast 2 + 4, scaled 4 + 4, added 8 + 4, its norm 4",
)
IDENTITY_TRAFFIC = Constant(
    12.0,
    "bytes read and written per pair of a weight's inputs",
    COUNTED,
    "peft's DoraLinearLayer.get_lora_weight: torch.eye 4, its cast 4 + 2, read by the product 2",
)
ADAPTER_OPERATORS = Constant(9, "operators per adapted linear, forward", COUNTED, "peft lora.Linear.forward")
BLOCK_MODULES = Constant(
    13, "modules of a block", COUNTED, "LlamaDecoderLayer, attention, MLP, their seven linears, activation, two norms"
)
ADAPTER_MODULES = Constant(4, "modules more per adapted linear", COUNTED, "peft lora.Linear: base_layer, dropout, A, B")
ZERO_MODULE_OPERATORS = Constant(
    9.5,
    "operators that ZeRO-3's hooks on a module take as long as, each pass",
    PUBLISHED,
    # 2.1 to 2.2 s a step of eight micro-batches, whether of 256, 512 or 1,024 tokens (0.16 ms a module and pass); on a CPU of ours 0.27
    "Qwen-1.8B, full, ZeRO-3 on one A100 (QwenLM/Qwen README.md at 712d922e: profiling of training)",
)
FSDP_BLOCK_OPERATORS = Constant(
    82,
    "operators that FSDP's hooks on a block take as long as, all passes together",
    MEASURED,
    "a third of ZeRO-3's (3.0 to 3.5 and 7.6 to 14.5 ms a block on a CPU, each in turn with the unsharded model: benchmarks/hooks.py)",
)
COMPILED_LAUNCH_SHARE = Constant(
    0.25,
    "launches left by Inductor",
    PUBLISHED,
    "Inductor fuses elementwise chains: share of bytes and launches left (torch.compile paper, table 3)",
)
_DECODING = "operators of a decoding step with this quantizer over those without"
# since 20c8828
DECODE_QUANT_OPERATORS = {
    "nf4": Constant(1.64, _DECODING, FITTED, "infer_optimum_benchmark_llama, more/infer_small_sources"),
    # LLM.int8() quantizes inputs, looks for outliers, which the host waits for, and splits each product in two
    "int8": Constant(5.368, _DECODING, FITTED, "more/infer_small_sources: Llama-2-7B and 13B on RTX 4090 and A100"),
    "float8": Constant(
        1.3, _DECODING, COUNTED, "each of 7 products quantizes its input first (FbgemmFp8Linear: two operators more)"
    ),
    # a tensor subclass, whose every product passes __torch_function__ and __torch_dispatch__
    "torchao-int4": Constant(1.6, _DECODING, BY_HAND, "infer_hf_quantization_llama31, eager, batch 1"),
}
_ENGINE_ROWS = "more/infer_small_sources, Llama-2-7B on one A100, batch 1: one row each"
_STARTING = (
    "seconds per block and step beyond what moving and multiplying takes, of an engine whose host starts each kernel"
)
ENGINE_BLOCK_SECONDS = {
    **state_by_key(
        {"exllama": 80e-6, "ctranslate2": 297e-6, "deepspeed-mii": 120e-6, "autoawq": 165e-6},
        _STARTING,
        BY_HAND,
        _ENGINE_ROWS,
    ),
    # with the CUDA graphs that it has since May 2024; 240 microseconds before
    "llama-cpp": Constant(72.87e-6, _STARTING, FITTED, "more/infer_llamacpp_gpu_bench"),
}
_CPU_ENGINES = (
    "SmolLM2-135M, an 87M Llama and Qwen2.5-0.5B's shape on two cores of Zen 4 (benchmarks/results/engines_cpu.json) and of Zen 5 "
    "(engines_cpu_zen5.json; both AVX512_VNNI, AVX512_BF16) and no other work, SmolLM2-135M on one and two of Zen 3 "
    "(engines_cpu_avx2.json), one set for the three; with AMX the three models on two cores of a Xeon (engines_cpu_amx.json)"
)
_ORT, _OPENVINO, _LLAMA_CPP, _CTRANSLATE2 = "onnxruntime-genai", "openvino-genai", "llama-cpp", "ctranslate2"
CPU_BLOCK_SECONDS = state_by_key(
    {
        **{
            (_ORT, "float32"): 110e-6,
            (_ORT, "int4"): 82e-6,
            (_ORT, "int4 without VNNI"): 26e-6,
            (_ORT, "int8"): 120e-6,
            (_ORT, "int8 without VNNI"): 45e-6,
        },
        **{
            (_OPENVINO, "float32"): 390e-6,
            (_OPENVINO, "int4"): 280e-6,
            (_OPENVINO, "int4 by bf16"): 160e-6,
            (_OPENVINO, "int8"): 240e-6,
            (_OPENVINO, "int8 by bf16"): 210e-6,
        },
        **{(_LLAMA_CPP, "float32"): 75e-6, (_LLAMA_CPP, "int4"): 85e-6, (_LLAMA_CPP, "int8"): 66e-6},
        **{(_CTRANSLATE2, "float32"): 160e-6, (_CTRANSLATE2, "int8"): 880e-6},
        **{(_ORT, "float32 with AMX"): 177e-6, (_ORT, "int4 with AMX"): 45e-6, (_ORT, "int8 with AMX"): 96e-6},
        **{
            (_OPENVINO, "bfloat16 with AMX"): 142e-6,
            (_OPENVINO, "float32 with AMX"): 123e-6,
            (_OPENVINO, "int4 by bf16 with AMX"): 148e-6,
            (_OPENVINO, "int8 by bf16 with AMX"): 185e-6,
        },
        **{
            (_LLAMA_CPP, "float32 with AMX"): 229e-6,
            (_LLAMA_CPP, "int4 with AMX"): 10e-6,
            (_LLAMA_CPP, "int8 with AMX"): 40e-6,
        },
        **{(_CTRANSLATE2, "float32 with AMX"): 38e-6, (_CTRANSLATE2, "int8 with AMX"): 1059e-6},
    },
    "seconds per block and step beyond what moving and multiplying takes, of an engine on a CPU",
    BY_HAND,
    _CPU_ENGINES,
)
CPU_READS = state_by_key(
    {
        **{("", "bfloat16"): 0.8, ("", "float32"): 0.41, ("", "packed bfloat16"): 0.72},
        **{
            (_ORT, "float32"): 1.05,
            (_ORT, "int4"): 0.59,
            (_ORT, "int4 without VNNI"): 1.3,
            (_ORT, "int8"): 0.71,
            (_ORT, "int8 without VNNI"): 0.84,
        },
        **{
            (_OPENVINO, "float32"): 1.2,
            (_OPENVINO, "int4"): 0.3,
            (_OPENVINO, "int4 by bf16"): 0.64,
            (_OPENVINO, "int8"): 0.48,
            (_OPENVINO, "int8 by bf16"): 0.64,
        },
        **{(_LLAMA_CPP, "float32"): 0.73, (_LLAMA_CPP, "int4"): 0.8, (_LLAMA_CPP, "int8"): 0.65},
        **{(_CTRANSLATE2, "float32"): 0.66, (_CTRANSLATE2, "int8"): 0.87},
        **{("", "bfloat16 with AMX"): 0.8, ("", "float32 by AVX-512"): 0.8, ("", "packed bfloat16 with AMX"): 0.8},
        **{(_ORT, "float32 with AMX"): 0.94, (_ORT, "int4 with AMX"): 0.94, (_ORT, "int8 with AMX"): 0.94},
        **{
            (_OPENVINO, "bfloat16 with AMX"): 1.15,
            (_OPENVINO, "float32 with AMX"): 1.15,
            (_OPENVINO, "int4 by bf16 with AMX"): 1.15,
            (_OPENVINO, "int8 by bf16 with AMX"): 1.15,
        },
        **{
            (_LLAMA_CPP, "float32 with AMX"): 0.63,
            (_LLAMA_CPP, "int4 with AMX"): 0.63,
            (_LLAMA_CPP, "int8 with AMX"): 0.63,
        },
        **{(_CTRANSLATE2, "float32 with AMX"): 0.71, (_CTRANSLATE2, "int8 with AMX"): 0.71},
    },
    "bytes of weights that are read for one row, over those that a copy moves, which writes half of them",
    BY_HAND,
    _CPU_ENGINES,
)
CPU_THREAD_READS = state_by_key(
    {
        **{("", "bfloat16"): 14.8e9, ("", "float32"): 25e9},
        **{(_ORT, "float32"): 110e9, (_ORT, "int4 without VNNI"): 11e9, (_ORT, "int8 without VNNI"): 27e9},
        **{
            (_OPENVINO, "float32"): 140e9,
            (_OPENVINO, "int4"): 48e9,
            (_OPENVINO, "int4 by bf16"): 50e9,
            (_OPENVINO, "int8"): 59e9,
        },
        **{(_LLAMA_CPP, "float32"): 90e9, (_LLAMA_CPP, "int4"): 32e9, (_LLAMA_CPP, "int8"): 45e9},
        **{(_CTRANSLATE2, "int8"): 35e9},
        **{
            ("", "bfloat16 with AMX"): 11.3e9,
            ("", "float32 by AVX-512"): 210e9,
            ("", "packed bfloat16 with AMX"): 25.1e9,
        },
        **{(_ORT, "int4 with AMX"): 26.4e9, (_ORT, "int8 with AMX"): 54.2e9},
        **{
            (_OPENVINO, "bfloat16 with AMX"): 37.8e9,
            (_OPENVINO, "float32 with AMX"): 48.9e9,
            (_OPENVINO, "int4 by bf16 with AMX"): 9.34e9,
            (_OPENVINO, "int8 by bf16 with AMX"): 9.8e9,
        },
        **{(_LLAMA_CPP, "int4 with AMX"): 10.7e9, (_LLAMA_CPP, "int8 with AMX"): 14.2e9},
    },
    "bytes of weights per second that a thread unpacks and multiplies one row with, beside reading them",
    BY_HAND,
    _CPU_ENGINES
    + "; OpenVINO without bf16: 48.1 and 42.6 tokens/s of SmolLM2-135M in 8 and 4 bits on two AVX2 cores, 32 and 32 on one"
    "; one thread of Zen 5 gave 11.6e9 and 7.0e9 in 32 and 16 bits by PyTorch, 17e9 and 18e9 in 8 and 4 by ONNX Runtime",
)
CPU_FEW_ROWS = state_by_key(
    {
        **{("", "bfloat16"): 0.23, ("", "float32"): 0.31, ("", "packed bfloat16"): 0.7},
        **{
            (_ORT, "float32"): 1.09,
            (_ORT, "int4"): 1.5,
            (_ORT, "int4 without VNNI"): 0.6,
            (_ORT, "int8"): 1.5,
            (_ORT, "int8 without VNNI"): 0.6,
        },
        **{
            (_OPENVINO, "float32"): 1.8,
            (_OPENVINO, "int4"): 0.65,
            (_OPENVINO, "int4 by bf16"): 3.3,
            (_OPENVINO, "int8"): 0.5,
            (_OPENVINO, "int8 by bf16"): 4.8,
        },
        **{(_LLAMA_CPP, "float32"): 0.27, (_LLAMA_CPP, "int4"): 0.57, (_LLAMA_CPP, "int8"): 0.48},
        **{(_CTRANSLATE2, "float32"): 0.49, (_CTRANSLATE2, "int8"): 0.72},
        **{("", "bfloat16 with AMX"): 0.11, ("", "float32 by AVX-512"): 0.26, ("", "packed bfloat16 with AMX"): 0.32},
        **{(_ORT, "float32 with AMX"): 0.94, (_ORT, "int4 with AMX"): 0.9, (_ORT, "int8 with AMX"): 0.92},
        **{
            (_OPENVINO, "bfloat16 with AMX"): 6.03,
            (_OPENVINO, "float32 with AMX"): 0.98,
            (_OPENVINO, "int4 by bf16 with AMX"): 0.945,
            (_OPENVINO, "int8 by bf16 with AMX"): 1.16,
        },
        **{
            (_LLAMA_CPP, "float32 with AMX"): 0.3,
            (_LLAMA_CPP, "int4 with AMX"): 0.5,
            (_LLAMA_CPP, "int8 with AMX"): 0.48,
        },
        **{(_CTRANSLATE2, "float32 with AMX"): 0.26, (_CTRANSLATE2, "int8 with AMX"): 0.62},
    },
    "rate of products with eight rows over that of large ones in registers of 256 bits (PyTorch in bf16: of its large ones)",
    BY_HAND,
    _CPU_ENGINES,
)
CPU_MANY_ROWS = state_by_key(
    {
        **{("", "bfloat16"): 0.8, ("", "float32"): 0.8, ("", "packed bfloat16"): 0.8},
        **{
            (_ORT, "float32"): 0.93,
            (_ORT, "int4"): 1.1,
            (_ORT, "int4 without VNNI"): 0.67,
            (_ORT, "int8"): 1.3,
            (_ORT, "int8 without VNNI"): 0.59,
        },
        **{
            (_OPENVINO, "float32"): 1.1,
            (_OPENVINO, "int4"): 0.86,
            (_OPENVINO, "int4 by bf16"): 1.6,
            (_OPENVINO, "int8"): 0.68,
            (_OPENVINO, "int8 by bf16"): 1.7,
        },
        **{(_LLAMA_CPP, "float32"): 0.41, (_LLAMA_CPP, "int4"): 0.92, (_LLAMA_CPP, "int8"): 0.84},
        **{(_CTRANSLATE2, "float32"): 0.77, (_CTRANSLATE2, "int8"): 2.1},
        **{("", "bfloat16 with AMX"): 1.17, ("", "float32 by AVX-512"): 0.75, ("", "packed bfloat16 with AMX"): 1.17},
        **{(_ORT, "float32 with AMX"): 0.67, (_ORT, "int4 with AMX"): 0.51, (_ORT, "int8 with AMX"): 0.58},
        **{
            (_OPENVINO, "bfloat16 with AMX"): 1.2,
            (_OPENVINO, "float32 with AMX"): 0.83,
            (_OPENVINO, "int4 by bf16 with AMX"): 1.95,
            (_OPENVINO, "int8 by bf16 with AMX"): 1.82,
        },
        **{
            (_LLAMA_CPP, "float32 with AMX"): 0.36,
            (_LLAMA_CPP, "int4 with AMX"): 0.74,
            (_LLAMA_CPP, "int8 with AMX"): 0.68,
        },
        **{(_CTRANSLATE2, "float32 with AMX"): 0.65, (_CTRANSLATE2, "int8 with AMX"): 1.88},
    },
    "rate of products with 512 rows over that of large ones, which in 32 bits is half of that of bf16 where that is more",
    BY_HAND,
    _CPU_ENGINES,
)
CPU_PACKED_BYTES = state_by_key(
    {
        **{(_ORT, "int8"): 1 + 4.5 / 32, (_ORT, "int4"): 0.77},
        **{(_OPENVINO, "int8"): 1.0, (_OPENVINO, "int4"): 0.5 + 2.5 / 64},
        **{(_LLAMA_CPP, "int8"): 34 / 32, (_LLAMA_CPP, "int4"): 18 / 32},
        (_CTRANSLATE2, "int8"): 1.0,
    },
    "bytes per weight, scales and zeros included",
    COUNTED,
    "files of SmolLM2-135M: a float32 scale and a zero per block of 32, of 4 bits with 8 in the layers' most sensitive products (0.75 to "
    "0.79 with Qwen2.5-0.5B's shape and an 87M Llama's); OpenVINO's a 16-bit one per row, per 64 in 4 bits;"
    " llama.cpp's a 16-bit scale per 32",
)
CPU_PACKED_HEAD_BYTES = state_by_key(
    {(_ORT, "int4"): 1 + 4.5 / 32, (_OPENVINO, "int4"): 1.0, (_LLAMA_CPP, "int4"): 34 / 32},
    "the same of the embedding and the output layer",
    COUNTED,
    "8 bits: openvino_model.bin of SmolLM2-135M has 86e6 bytes, ONNX Runtime's model.onnx.data 113e6, for 106e6 and 28e6 weights; llama.cpp's "
    "model.gguf 90.8e6, and 349e6 of Qwen2.5-0.5B's shape",
)
CPU_REPACKED_BYTES = state_by_key(
    {(_LLAMA_CPP, "int4"): 18 / 32},
    "bytes per weight of the blocks, held beside the mapped file as the kernels want them",
    BY_HAND,
    f"{_CPU_ENGINES}: Q4_0 takes 0.02 GiB more than 8 bits with Qwen2.5-0.5B's shape, whose file is 0.17 GiB smaller",
)
CPU_WEIGHT_COPIES = state_by_key(
    {_OPENVINO: 2.0},
    "times the weights are held: the mapped file, and as the kernels want them",
    BY_HAND,
    _CPU_ENGINES,
)
_ROWS_OF_FILE = "/proc/PID/smaps: of openvino_model.bin 103e6 of 125e6 bytes were resident in 8 bits, all in 32 (134M Llama, untied)"
CPU_EMBEDDING_COPIES = state_by_key(
    {
        **{(_ORT, "float32"): 0.0, (_ORT, "int8"): 0.0, (_ORT, "int4"): 0.0},
        **{(_OPENVINO, "float32"): 1.0, (_OPENVINO, "int8"): 0.0, (_OPENVINO, "int4"): 0.0},
        (_OPENVINO, "bfloat16"): 3.0,
    },
    "times an embedding is held that is not the output layer too; 0: its rows are read from the file",
    BY_HAND,
    f"{_CPU_ENGINES}; {_ROWS_OF_FILE}",
)
CPU_TIED_COPIES = state_by_key(
    {
        **{(_ORT, "float32"): 1.0, (_ORT, "int8"): 1.0, (_ORT, "int4"): 1.0},
        (_OPENVINO, "bfloat16"): 2.0,
    },
    "times more that an embedding is held which is the output layer too",
    BY_HAND,
    f"{_CPU_ENGINES}; smaps has 0.53 GiB of the 0.39 of Qwen2.5-0.5B's file in 4 bits; OpenVINO looks bf16 rows up in a copy of 32 bits",
)
LLAMA_CPP_SLOT_TOKENS = Constant(
    256, "tokens", COUNTED, "SLOT_TOKENS of the emitted engine.py: a slot has whole multiples of them, and one more"
)
CPU_PROCESS_GIB = state_by_key(
    {_ORT: 0.2, _OPENVINO: 0.31, _LLAMA_CPP: 0.145, _CTRANSLATE2: 0.145},
    "GiB of the interpreters with the engine and a tokenizer, without torch",
    BY_HAND,
    f"{_CPU_ENGINES}; OpenVINO: what is left of 1.35 GiB at the peak of two processes, the server's 0.14 and that of the steps (2026.4, SmolLM2-135M)",
)
_METAL = "benchmarks/local.csv: llama.cpp and MLX on Apple's M1 to M4 (`python benchmarks/local.py --fit`)"
_SMALL_MLX = "benchmarks/local.csv, M3 Ultra: Qwen3-0.6B takes 2.1 ms a token beside its weights; 1,728 tokens more of an 8B model 0.7 ms"
METAL_BLOCK_SECONDS = {
    "llama-cpp": Constant(82e-6, "seconds per block and step beside its weights, on Apple's GPUs", FITTED, _METAL),
    "mlx": Constant(80e-6, "seconds per block and step beside its weights, on Apple's GPUs", BY_HAND, _SMALL_MLX),
}
METAL_READS = Constant(
    1.1,
    "bytes of weights that one row is multiplied with on Apple's GPUs, over those that a copy moves",
    FITTED,
    _METAL,
)
METAL_VECTOR_READS = state_by_key(
    {"llama-cpp-metal": 0.0257, "llama-cpp-metal-2024": 0.0186},
    "bytes of packed weights that one row is multiplied with there at most, per float32 operation of the GPU meanwhile",
    FITTED,
    _METAL,
)
METAL_CACHE_REALISED = {
    "llama-cpp": Constant(0.85, "share of the bandwidth at which decoding reads keys and values there", FITTED, _METAL),
    "mlx": Constant(0.5, "share of the bandwidth at which decoding reads keys and values there", BY_HAND, _SMALL_MLX),
}
METAL_PACKED_RATE = Constant(
    0.81, "rate of a prompt's products with packed weights there, over that with plain ones", FITTED, _METAL
)
WITH_MATRIX_UNITS = ("m5",)
"""architectures of GPUs whose matrix units these engines' kernels use, and PyTorch's do not"""
METAL_MATRIX_RATE = {
    "llama-cpp": Constant(
        2.4,
        "times the rate of a prompt's products, with matrix units",
        PUBLISHED,
        "https://github.com/ggml-org/llama.cpp/pull/16634: M5, 7B in 4 bits, a prompt of 512 at 608 tokens/s",
    ),
    "mlx": Constant(
        3.6,
        "times the rate of a prompt's products, with matrix units",
        PUBLISHED,
        # of prompts of 4,096 tokens on an M5 over an M4, whose other units are alike
        "https://machinelearning.apple.com/research/exploring-llms-mlx-m5: times to a first token 3.3 to 4.1 times as short",
    ),
}
MLX_PACKED_BYTES = state_by_key(
    {"int8": 1 + 4 / 64, "int4": 0.5 + 4 / 64},
    "bytes per weight",
    COUNTED,
    "mlx-lm 0.32 packs groups of 64, with a 16-bit scale and a 16-bit bias each, the embedding and the output layer too",
)
_STEP = "seconds of host time between two steps: scheduling, sampling, detokenizing"
_OF_SEQUENCE = "seconds more of a step for each of its sequences"
# by version: today's, and those of published runs
VLLM_STEP_SECONDS = {
    **state_by_key({"vllm": 0.39e-3, "vllm-0.8": 1.23e-3, "vllm-0": 2.52e-3}, _STEP, FITTED, _SERVING),
    "vllm-0.6": Constant(1.4e-3, _STEP, BY_HAND, _ENGINE_ROWS + "; with steps planned several at once"),
}
VLLM_SEQUENCE_SECONDS = {
    **state_by_key({"vllm": 6e-6, "vllm-0.8": 4e-6, "vllm-0": 57e-6}, _OF_SEQUENCE, FITTED, _SERVING),
    "vllm-0.6": Constant(0.0, _OF_SEQUENCE, ASSUMED, "the same row: one sequence"),
}
VLLM_REQUEST_SECONDS = Constant(
    4e-3,
    "seconds of a server before and after the steps of a first token: HTTP, the tokenizer, the way between its processes",
    BY_HAND,
    # predicted without it over measured: 0.82 in the median, 1.5B to 32B; with it 1.00
    "benchmarks/served.csv: mean times to a first token of vLLM 0.8.5 on one H100 PCIe and RTX 4090, 52 servers",
)
GENERATION_OPERATORS = Constant(
    49,
    "operators of a new token outside of the blocks",
    COUNTED,
    "what generate dispatches beside 36 a Llama block: embedding, masks, rotary, norm, head, choice, stopping (transformers 5.23)",
)
STEP_OVERHEAD_SECONDS = Constant(
    7.6e-3,
    "seconds of host time per optimizer step: clipping, update, scheduler, callbacks of the Trainer",
    MEASURED,
    "a Trainer's step beside training_step, 291 parameters, fused AdamW, one thread's CPU time (FINDINGS.md, transformers 5.23)",
)
UNFUSED_STEP_SECONDS = Constant(
    16.1e-3,
    "the same with torch.optim's unfused AdamW, which issues each operation by itself",
    MEASURED,
    "the same run",
)
UNFUSED_UPDATE_PASSES = Constant(
    13,
    "more reads and writes of the parameters than the 7 of one kernel",
    COUNTED,
    # mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4
    "torch.optim's foreach AdamW makes a pass per operation, 20 in all (torch 2.13, adam.py: _multi_tensor_adam)",
)
CPU_UNFUSED_UPDATE_PASSES = Constant(
    5,
    "the same on a CPU, which updates one tensor after the other and finds what it wrote in its caches",
    MEASURED,
    "a step of a 17M Llama takes 1.05 times as long with the unfused AdamW (this project)",
)
CLIP_PASSES = Constant(
    3,
    "reads and writes of the gradients",
    COUNTED,
    "the norm reads them, scaling reads and writes them whatever the norm is (torch 2.13, clip_grad_norm_; Trainer's max_grad_norm)",
)
COLLATE_SECONDS_PER_TOKEN = Constant(
    2.0e-7,
    "seconds per token",
    MEASURED,
    "benchmarks/results/collate.json: 190 to 205 ns a token to batch in the training process; workers hide it",
)

# --- generation ------------------------------------------------------------------------------------------------------
_SERVED = "aiconfigurator-core 0.12.0, vLLM's, SGLang's and TensorRT-LLM's kernels (benchmarks/served_operators.py)"
PRODUCT_START_SECONDS = state_by_key(
    # medians over A100, H100, H200, B200 of a + bytes / rate: 16 bits 3.4 to 5.4, scaled 8 bits 4.6 to 15, 8- and 4-bit weights of
    # 16-bit products 12 to 20 and 14 to 20, nvfp4 5.5 to 10
    {
        "default": 4e-6,
        "float8": 6.5e-6,
        "int8": 12e-6,
        "gptq-8bit": 12e-6,
        "gptq-4bit": 14e-6,
        "torchao-int4": 14e-6,
        "torchao-int4-g32": 14e-6,
        "torchao-int8": 12e-6,
        "nvfp4": 7.5e-6,
        "mxfp4": 7.5e-6,
    },
    "seconds that a product of few rows takes beside reading its weights, by how they are stored",
    PUBLISHED,
    _SERVED,
)
BLOCK_PRODUCTS = Constant(
    4,
    "products of a served block",
    COUNTED,
    "queries, keys and values as one; gate and up as one (vLLM's and gpt-fast's models)",
)
BLOCK_KERNELS = Constant(
    5,
    "kernels of a served block beside its products and attention",
    COUNTED,
    "two norms with the residual, rotary embedding, the cache's update, activation (vLLM's fused operators)",
)
KERNEL_SECONDS = Constant(
    3e-6,
    "seconds of a short kernel in a replayed graph",
    PUBLISHED,
    "aiconfigurator-core 0.12.0, systems/*.yaml: mem_empirical_constant_latency",
)
DECODE_ATTENTION_SECONDS = Constant(
    10e-6,
    "seconds that attention of one new token takes beside reading the cache",
    PUBLISHED,
    # under a megabyte of cache: at least 10.5, 11.0, 10.8, 8.5 on A100, H100, H200, B200 by vLLM, 10.4, 8.1, 8.1, 8.6 by TensorRT-LLM
    _SERVED,
)
LLAMA_CPP_VECTOR_BYTES = Constant(
    0.0472,
    "bytes of weights that its products of one row read at most, per float32 operation that the vector units could do meanwhile",
    FITTED,
    # A100 SXM and PCIe are as fast as each other, whatever their bandwidth
    "more/infer_llamacpp_gpu_bench: Llama-3-8B and 70B on A100, whose vector units are slow beside its memory",
)
LLAMA_CPP_BATCH = Constant(512, "tokens of a prompt that it computes at a time", PUBLISHED, "llama.cpp: --ubatch-size")
GRAPH_GIB = Constant(
    0.7,
    "GiB of replayed graphs and their buffers",
    ASSUMED,
    "0.3 to 1.5 in logs that vLLM prints when it captured them (its issues)",
)
_VLLM = "vLLM 0.33's defaults (docs.vllm.ai: engine arguments)"
SAMPLING_BYTES = Constant(
    12.0,
    "bytes beside the logits, per output: their float32 copy, its softmax, and noise of the same size",
    PUBLISHED,
    "vLLM 0.33: v1/sample/sampler.py and ops/topk_topp_sampler.py; its kernel for top-k and top-p works in place",
)
STEPS_IN_FLIGHT = Constant(
    2, "steps planned while the one before runs, and itself", PUBLISHED, "vLLM's asynchronous scheduling, on by default"
)
PAGE_TOKENS = Constant(16, "tokens of a block of the paged cache", PUBLISHED, _VLLM + ": block_size")
VLLM_MEMORY_SHARE = Constant(0.92, "share of the device's memory", PUBLISHED, _VLLM + ": gpu_memory_utilization")
VLLM_BATCHED_TOKENS = Constant(
    8192, "tokens of one step", PUBLISHED, _VLLM + ": max_num_batched_tokens of a server, 80 GB"
)
VLLM_SEQUENCES = Constant(1024, "sequences computed together", PUBLISHED, _VLLM + ": max_num_seqs of a server, 80 GB")
_TENSORRT = "TensorRT-LLM's defaults (nvidia.github.io/TensorRT-LLM, llm-api reference)"
TENSORRT_BLOCK_TOKENS = Constant(
    32, "tokens of a block of the paged cache", PUBLISHED, _TENSORRT + ": tokens_per_block"
)
TENSORRT_MEMORY_SHARE = Constant(
    0.9,
    "share of the memory that is free beside weights and activations",
    PUBLISHED,
    _TENSORRT + ": free_gpu_memory_fraction",
)
TENSORRT_BATCHED_TOKENS = Constant(8192, "tokens of one step", PUBLISHED, _TENSORRT + ": max_num_tokens")
TENSORRT_SEQUENCES = Constant(2048, "sequences computed together", PUBLISHED, _TENSORRT + ": max_batch_size")
# since 1830467
STAGE_WAIT = Constant(
    0.11,
    "share of a step that each further stage of layers adds to it: parts of unequal length wait for each other",
    BY_HAND,
    "TensorRT-LLM's perf-overview.md (00f37686): Llama-3.3-70B over 2, 4 and 8 RTX PRO 6000, 1.9, 3.0 and 4.0 times one",
)
RECONSTRUCTED_ROWS = Constant(
    8,
    "rows from which 4-bit weights are unpacked to 16 bits before they are multiplied",
    PUBLISHED,
    "exllama's MATMUL_RECONS_THD (exllama_ext, auto-gptq's kernels)",
)
CACHE_REALISED = Constant(
    0.4324,
    "share of the elementwise bandwidth that copying and reading the key-value cache reaches in decoding, without kernels for it",
    FITTED,
    "infer_optimum_benchmark_llama, more/infer_llamacpp_gpu_bench, more/infer_hf_docs_sdpa",
)
PREFILL_HIDDEN_BYTES = Constant(
    68,
    "bytes per hidden element, token and block",
    COUNTED,
    "norms, rotary and residuals in 16 bits: 34 reads and writes",
)
PREFILL_FFN_PASSES = Constant(
    5, "reads and writes per feed-forward element", COUNTED, "activation and product of gate and up"
)

# --- links -----------------------------------------------------------------------------------------------------------
_NCCL = "nccl-tests' all-gather and reduce-scatter on 8 A100 and 8 H100 (aiconfigurator-core 0.12.0, nccl 2.27)"
COLLECTIVE_REALISED = Constant(
    0.74,
    "share of the link's rate that a collective reaches while the device does nothing else",
    PUBLISHED,
    # 0.71 of 300 GB/s and 0.77 of 450 GB/s from 32 to 512 MiB
    _NCCL + ", large messages",
)
PAIR_REALISED = Constant(
    0.77,
    "share of that which a collective between two devices reaches",
    PUBLISHED,
    # gather, scatter and all-reduce of 256 MiB, 2 over 8: 0.74, 0.80, 0.87 on A100, 0.77, 0.73, 0.71 on H100
    _NCCL + ", 2 of 8",
)
_RAMP = _NCCL + ", 64 KiB to 512 MiB between 2, 4 and 8: mean error 14 %, 39 without"
COLLECTIVE_RAMP_BYTES = Constant(
    6e6, "bytes that a large message's filling and draining of the links takes as long as", PUBLISHED, _RAMP
)
COLLECTIVE_RAMP_HALF_BYTES = Constant(2e6, "bytes of a message that takes half of that", PUBLISHED, _RAMP)
OVERLAP_SHARE = Constant(
    0.4259,
    "share of compute behind which FSDP and DDP hide communication",
    FITTED,
    "more/train_small_sources, more/train_torchtitan, more/train_megatron_bridge, more/train_nanotron_h100",
)
COLLECTIVE_OPERATORS = Constant(
    2.679,
    "operators that one blocking collective takes as long to issue as, times the logarithm to base 2 of its ranks",
    FITTED,
    "more/train_vtrain_megatron_a100",
)
COLLECTIVE_LATENCY_SECONDS = Constant(
    4.0e-6,
    "seconds per step of a tree, of a gather; an all-reduce is two",
    PUBLISHED,
    # all-reduce and all-gather between 8: 22.6 and 15.6 us on A100, 15.6 and 10.4 us on H100
    _NCCL + ", 512 bytes",
)
_TUNING = "NCCL's own tuning model (src/graph/tuning.cc, hwLat of ring and LL128), by which it chooses"
HOP_SECONDS = Constant(
    1.9e-6, "seconds of a step of a ring over several nodes that stays in its node", PUBLISHED, _TUNING + ": NVLink"
)
NETWORK_HOP_SECONDS = Constant(4.0e-6, "seconds of a step of a ring to the next node", PUBLISHED, _TUNING + ": NET")
ONE_SHOT_SECONDS = Constant(
    4.9e-6,
    "seconds of an engine's own all-reduce of few bytes within a node, in a replayed graph",
    PUBLISHED,
    # 4.9 to 5.8 on A100, 4.2 to 4.7 on H100 and H200, 6.6 to 7.4 on B200 by vLLM and SGLang; TensorRT-LLM's 3.8, 2.7, 4.6
    _SERVED,
)
ONE_SHOT_BYTES = Constant(
    8 << 20, "bytes that engines reduce in this way at most", PUBLISHED, "vLLM's custom_all_reduce: max_size"
)
ONE_SHOT_REALISED = Constant(
    0.7,
    "share of the link's rate at which each device reads the parts of all others, or, in two passes, its share of them",
    PUBLISHED,
    # up to 4 MB between 2, 4 and 8: median error 24 % over four boards and three engines; a ring is 2.0 to 4.4 times too slow
    _SERVED,
)
UNIT_SECONDS = Constant(
    0.0002485,
    "seconds of host time per collective of a small FSDP1 unit (PEFT's wrap policy makes one of each adapter matrix)",
    FITTED,
    "train_fms_acceleration",
)
BUCKET_BYTES = Constant(25e6, "bytes per bucket of gradients", PUBLISHED, "torch docs, DistributedDataParallel: 25 MB")
NETWORK_BYTES_PER_S = state_by_key(
    {"volta": 12.5e9, "turing": 12.5e9, "hopper": 50e9, "blackwell": 50e9, "default": 25e9},
    "bytes per second and device",
    ASSUMED,
    "one port a GPU: 100 Gbit/s before Ampere (EDR, Omni-Path), 200 (DGX A100), 400 from Hopper on (DGX H100); assumed where"
    " none was read",
)
PCIE_LANE_BYTES_PER_S = state_by_key(
    {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9},
    "bytes per second and lane, one direction, after line coding",
    PUBLISHED,
    "PCI-SIG, by generation",
)
PEER_SHARE = Constant(
    0.8,
    "share of a PCIe link that devices with peer access reach: protocol overhead",
    PUBLISHED,
    "NVIDIA p2pBandwidthLatencyTest on A100 PCIe: 25 of 31.5 GB/s",
)
THROUGH_HOST_SHARE = Constant(
    0.4, "the same without peer access", ASSUMED, "every byte crosses the host's memory: half of PEER_SHARE"
)
UNKNOWN_LINK_BYTES_PER_S = Constant(
    12e9, "bytes per second", ASSUMED, "PCIe 3.0 x16 with peer access, for a board of which nothing is known"
)

# --- offloading ------------------------------------------------------------------------------------------------------
_OFFLOAD = "assumed: server memory 60 GB/s for one process, 200 for all of a node, NVMe 3.5/3 GB/s (Transformers docs, deepspeed)"
HOST_BYTES_PER_S = Constant(60e9, "bytes per second and process", ASSUMED, _OFFLOAD)
HOST_NODE_BYTES_PER_S = Constant(200e9, "bytes per second and node", ASSUMED, _OFFLOAD)
NVME_BYTES_PER_S = Constant(3.2e9, "bytes per second and node", ASSUMED, _OFFLOAD)
PAGEABLE_SHARE = Constant(
    0.5,
    "share of the link",
    ASSUMED,
    "from_pretrained leaves offloaded weights in pageable memory, which the driver copies to a page-locked buffer first",
)
HOST_ADAM_BYTES = Constant(
    28, "bytes of host memory traffic per parameter", COUNTED, "fp32 weight, gradient, two moments read, three written"
)
HOST_SCALE_BYTES = Constant(
    8, "bytes of host memory traffic per parameter", COUNTED, "clipping: the fp32 gradient read and written"
)
NVME_ADAM_BYTES = Constant(
    24, "bytes of disk traffic per parameter", COUNTED, "fp32 weight and two moments, read and written"
)

# --- CPU -------------------------------------------------------------------------------------------------------------
_CPU_STEP = "profiles of 10M-56M Llama training steps on 2 shared AVX-512 cores, CPU time per thread (this project)"
# since f978703
GEMM_CEILING_CPU = Constant(
    0.6,
    "share of the data-sheet rate that a step's products reach",
    BY_HAND,
    "share that products reached in training runs (benchmarks/results/cpu_runs.json)",
)
# since f978703
GEMM_MEASURED_CPU = Constant(
    0.93,
    "share of a measured square product's rate that a step's products reach",
    BY_HAND,
    "share that products reached in training runs (benchmarks/results/cpu_runs.json)",
)
# since 3560eb4
CPU_READ_REALISED = Constant(0.8, "share of the memory bandwidth for reading weights", BY_HAND, _CPU_STEP)
# since 3560eb4
CPU_ELEMENTWISE_REALISED = Constant(
    0.35, "the same for operators that write fresh memory (page faults)", BY_HAND, _CPU_STEP
)
CPU_COMPILED_READ_GAIN = Constant(
    1.2,
    "speed of reading weights in compiled decoding over eager",
    MEASURED,
    "43.6 against 30.7 tokens/s, less the launches saved (88M Llama, this project)",
)
# Of the float32 rate of products: 0.17 at 16 tokens, 0.28 at 40, 0.42 at 128, 0.46 at 512, 0.59 at 1024 on one Zen 5 core; on two Intel
# cores 0.54 at 256, 0.74 at 512, 0.9 at 1024.
_CPU_ATTENTION = (
    "forward and backward in float32 of 8 heads of 64, 256 to 2048 tokens, on 2 AVX-512 cores, and of 9 heads of 64, 16 to 1024"
    " tokens, on a Zen 5 core (this project): within a third of either"
)
CPU_ATTENTION_REALISED = Constant(
    0.75,
    "rate of scaled_dot_product_attention over the float32 rate of products, long sequences",
    MEASURED,
    _CPU_ATTENTION,
)
CPU_ATTENTION_HALF_LENGTH = Constant(60, "tokens at which it reaches half of that", MEASURED, _CPU_ATTENTION)
_WITH_TILES = "9 heads of 64, 8 rows of 16 to 2,048 tokens, forward and backward, one thread of a Xeon with AMX, torch 2.13 (this project)"
CPU_TILES_BACKWARD_REALISED = Constant(
    0.6,
    "rate of its backward pass over the float32 rate of products, long sequences, where those are wider than the kernel's",
    MEASURED,
    _WITH_TILES,
)
CPU_TILES_BACKWARD_HALF_LENGTH = Constant(
    300,
    "tokens at which it reaches half of that",
    MEASURED,
    f"{_WITH_TILES}: 0.19 at 128 tokens, 0.25 at 256, 0.44 at 1,024, 0.54 at 2,048",
)
CPU_HALF_HEAD_SECONDS = Constant(
    1.6e-4,
    "seconds of a thread that the backward pass takes for one head of one row in bf16 beyond its arithmetic",
    MEASURED,
    # Zen 5: 0.12 ms at 40 tokens, 0.16 to 0.21 at 128, 0.16 at 256, nothing to see from 512 on; with AMX 0.08 at 16, 0.16 at 64, 0.29 at
    # 128, 0.16 at 256 and 384, nothing at 512
    f"scaled_dot_product_attention in bf16 and float32, 16 to 1024 tokens, one Zen 5 core, torch 2.13 (this project); {_WITH_TILES}",
)
CPU_CACHED_SCORES = Constant(
    20e6, "bytes of scores in float32 that the caches of a core and its neighbours hold", MEASURED, _WITH_TILES
)
CPU_CACHED_SCORES_GAIN = Constant(
    2.2,
    "speed of the passes over those, over that from memory",
    MEASURED,
    f"{_WITH_TILES}: 4.5 to 5 ns a score in bf16 and 9 in float32 up to 256 tokens, 14 to 18 from 512 on",
)
CPU_CORE_FLOPS = Constant(
    40e9,
    "float32 operations per second and core",
    ASSUMED,
    "assumed: 2.5 GHz x 16 fused fp32 operations reached a core (AVX2-class), where nothing was measured",
)
CPU_BYTES_PER_S = Constant(
    15e9,
    "bytes per second",
    ASSUMED,
    "assumed: one or two DDR4 channels reached by one process, where nothing was measured",
)
CPU_OPERATOR_SECONDS = Constant(
    8e-6,
    "seconds per operator",
    ASSUMED,
    "host time per operator on a CPU: assumed, and training runs hold with it (benchmarks/results/cpu_runs.json)",
)
CPU_GENERATION_OPERATOR_SECONDS = Constant(
    21e-6,
    "seconds per operator of a step of Transformers' decoding on a CPU: Python, dispatch and small tensors",
    BY_HAND,
    _CPU_ENGINES,
)
CPU_COMPILED_OPERATOR_SHARE = Constant(
    0.8,
    "of that, what is left in a compiled step: guards, and the calls of products and attention",
    BY_HAND,
    "1.16 to 1.26 times the tokens of eager decoding, SmolLM2-135M on two busy AVX2 cores; 1.42, 88M Llama, is 1.25 so (this project)",
)
CPU_DIRECT_OPERATOR_SHARE = Constant(
    0.5,
    "of that, what is left where the emitted engine calls a block's products itself (direct_step.py)",
    MEASURED,
    "58 against 69 milliseconds per token, SmolLM2-135M in bf16 with plain weights, one busy thread of Zen 4 (this project)",
)
CPU_BF16_EMULATION = Constant(
    3.1,
    "times float32's time",
    MEASURED,
    "bf16 without bf16 instructions took 3.1 times fp32 (17M Llama, AVX-512 CPU, measured by this project)",
)
OVERSUBSCRIBED = Constant(
    0.5,
    "share of the rate left per doubling of threads over the usable CPUs",
    PUBLISHED,
    "the mild end: runs lost 4 to 45 times (https://github.com/llmmanorg/llmman/issues/322, https://github.com/ollama/ollama/issues/17916)",
)

# --- how far published runs are from their estimates -------------------------------------------------------------------
UNMEASURED_GENERATION = Constant(
    1.4,
    "factor by which both ends of the interval lie farther away, for accelerators of a generation without a measured row",
    BY_HAND,
    # with 1.2 64 % of V100's training, whose source's runs took 1.3 to 5 times as long as predicted
    "benchmarks/residuals.py: of each generation that is left out 71 % of the rows or more lie inside",
)
UNMEASURED_MAKER = Constant(
    1.4,
    "the same, where no row of the maker was measured either",
    BY_HAND,
    "no less than for another generation: with 1.0 83 % of Apple's rows lie inside when all of them are left out, of AMD's 86 %",
)
RESIDUAL_NEARNESS = Constant(
    0.35,
    "weight of a cell of residuals per property in which it differs",
    BY_HAND,
    "benchmarks/residuals.py: of left-out tables and devices 70-90 % of the rows lie inside; with 0.45 91.5 % of a device's do",
)
INTERVAL_SHARES = state_by_key(
    {"low": 0.1, "high": 0.9},
    "share of the weight below",
    ASSUMED,
    "P10 and P90 by definition",
)
