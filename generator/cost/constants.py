"""Every fitted or published constant of the cost model, with unit and source. Nothing else holds one.

``benchmarks/fit.py`` refits those marked "fitted"; none belongs to one model, one device or one row.
"""

from __future__ import annotations

# --- memory -----------------------------------------------------------------------------------------------------------
CONTEXT_GIB = {"nvidia": 0.55, "amd": 0.8, "intel": 0.6, "apple": 0.3}
CONTEXT_DEFAULT_GIB = 0.8
CONTEXT_SOURCE = "CUDA context and kernels after the first matmul, torch 2.x (Transformers docs model_memory_anatomy)"
PROCESS_GIB = 0.67
PROCESS_SOURCE = (
    "resident size of Python with torch, transformers and a Trainer at work (benchmarks/results/cpu_runs.json)"
)
COMMUNICATOR_GIB = 0.5
COMMUNICATOR_SOURCE = "NCCL channels and buffers of one communicator (nccl docs: 16 channels x 2 x 4 MiB and proxies)"
WORKSPACE_BYTES = 8.5e6
WORKSPACE_SOURCE = "cuBLAS workspace, CUBLAS_WORKSPACE_CONFIG default :4096:2:16:8 (torch docs, cuda notes)"
FRAGMENTATION = 0.10
"""share of what a step allocates and frees again that the caching allocator reserves beyond what it hands out; fitted"""
RETAINED_FRAGMENTATION = 0.24
"""the same where block inputs and gradients outlive their block and leave holes (FSDP1 with frozen weights); fitted"""
FRAGMENTATION_SOURCE = (
    "fitted: allocator peak of runs that fitted against those that ran out (fms-acceleration, A100-80GB)"
)
CPU_FRAGMENTATION = 0.20
CPU_RECOMPUTED_RETAINED = 0.34
"""share of what recomputed blocks free that stays resident all the same: holes between the inputs that are kept; fitted"""
CPU_FRAGMENTATION_SOURCE = (
    "glibc malloc keeps freed arenas; resident over live bytes (fitted on benchmarks/results/cpu_runs.json)"
)
NF4_SCALE_BYTES = 4 / 64
NF4_DOUBLE_SCALE_BYTES = 1 / 64 + 4 / (64 * 256)
NF4_SOURCE = "bitsandbytes blocksize 64, nested blocksize 256 (QLoRA paper, section 3)"
GPTQ_EXTRA_BYTES = 2 / 128 + 0.5 / 128
GPTQ_SOURCE = "GPTQ group size 128: a float16 scale and a 4-bit zero a group"
GGUF_Q4_BYTES = 4.85 / 8
"""llama.cpp Q4_K_M: 4.85 bits a weight over all tensors (its quantize README)"""
INT8_EXTRA_BYTES = 4 / 4096
ZERO_BUCKET_COPIES = 4.5
"""16-bit copies of each bucket that overlap_comm holds (Transformers docs, deepspeed)"""
FSDP_LIVE_BLOCKS = 2
FSDP_LIVE_SOURCE = "FSDP keeps the block in use and prefetches one (torch docs, FullyShardedDataParallel)"

# --- compute ----------------------------------------------------------------------------------------------------------
GEMM_CEILING = {
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
    "default": 0.75,
}
"""largest share of the dense 16-bit peak that a matrix product reached, by architecture"""
GEMM_SOURCE = (
    "maximum achievable matmul rate (stas00/ml-engineering, compute/accelerator); share reached in runs fitted"
)
GEMM_REALISED = 0.923
"""share of the ceiling that long-running training products reach (power limit, tile quantization); fitted"""
BANDWIDTH_REALISED = 0.771
"""share of the data-sheet bandwidth that elementwise kernels reach; fitted, MI300X copies 4.1 of 5.3 TB/s (same source)"""
BANDWIDTH_SOURCE = "bytes moved over data-sheet bandwidth, share reached fitted"
FLASH_FORWARD = {"hopper": 0.45, "blackwell": 0.25, "default": 0.419}
FLASH_BACKWARD = {"hopper": 0.293, "blackwell": 0.20, "default": 0.288}
"""share of the dense 16-bit peak of FlashAttention-2 kernels (sdpa uses the same), causal, by architecture; fitted"""
FLASH_SOURCE = "FlashAttention-2 paper, figures 4-6 (190-225 of 312 TFLOP/s on A100, 335 of 989 on H100); share fitted"
NORM_PASSES = 7.0
"""float32 values that a Transformers RMSNorm reads and writes an element: cast, square, mean, scale, cast, weight"""
LOSS_BYTES, FUSED_LOSS_BYTES = 40.0, 14.0
"""bytes read and written a logit: cast, log-softmax, its gradient, cast back; and with the gradient written in place"""
FUSED_SCORE_PASSES = 3.58
"""reads and writes of an attention score, forward, with fused scale, mask and softmax (Megatron-LM); fitted"""
ROTARY_PASSES = 10.0
L2_GAIN = 2.3
L2_TENSORS = 8.0
"""speed of the L2 cache over memory (A100 whitepaper: 5120 bytes a clock), and how many tensors must share it"""
ROUTING_PASSES = 40
GROUPED_ROUTING_PASSES = 10.0
"""reads and writes of a token's hidden state for each expert it goes to: experts one by one (fitted), or grouped (counted)"""
BACKWARD_TRAFFIC = 1.5
"""elementwise bytes of the backward pass over those of the forward pass; fitted"""
LAUNCH_SECONDS = 1.47e-05
BACKWARD_LAUNCH_SHARE = 1.53
LAUNCH_SOURCE = "host time to issue one operator of a forward pass, and the backward pass over the forward one; fitted"
OVERLAP_POWER = 2.12
"""how sharply a step goes from bound by the host's issuing to bound by the device: (host^p + device^p)^(1/p); fitted"""
DECODE_QUANT_OPERATORS = {"nf4": 1.75, "int8": 3.5, "gptq-4bit": 1.18}
"""operators of a decoding step with this quantizer over those without; fitted (optimum-benchmark, batch 1)"""
CACHE_REALISED = 0.456
"""share of the elementwise bandwidth that copying and reading the key-value cache reaches in decoding; fitted"""
COMPILED_LAUNCH_SHARE = 0.25
COMPILE_TRAFFIC_SHARE = 0.45
COMPILE_SOURCE = "Inductor fuses elementwise chains: share of bytes and launches left (torch.compile paper, table 3)"
DEQUANT_BYTES = 3.0
"""bytes moved to dequantize one nf4 weight to 16 bits: half read, 2 written, 0.5 of scales and re-read"""
DEQUANT_REALISED = 0.391
DEQUANT_SOURCE = "bitsandbytes dequantize kernel, share of bandwidth fitted on QLoRA runs (fms-acceleration)"
STEP_OVERHEAD_SECONDS = 0.0153
STEP_OVERHEAD_SOURCE = "Trainer bookkeeping an optimizer step: clipping, scheduler, callbacks (fitted)"
COLLECTIVE_REALISED = 0.95
OVERLAPPED_REALISED = 0.787
"""the same for gathers and reductions that share the device with compute (FSDP, DDP); fitted"""
COLLECTIVE_OPERATORS = 3.48
"""host time of one blocking collective, in operators; fitted"""
COLLECTIVE_LATENCY_SECONDS = 5.47e-05
COLLECTIVE_SOURCE = "NCCL bus bandwidth over link rate (nccl-tests on A100/H100 nodes), latency of one ring step"
BUCKET_BYTES = 25e6
"""DDP reduces gradients in buckets of 25 MB (torch docs, DistributedDataParallel)"""
NETWORK_BYTES_PER_S = {"hopper": 50e9, "blackwell": 50e9, "default": 25e9}
NETWORK_SOURCE = (
    "one 200 Gbit/s port a GPU (DGX A100), 400 Gbit/s from Hopper on (DGX H100); assumed where none was read"
)
UNIT_SECONDS = 0.00032
"""host time of one collective of a small FSDP unit; PEFT's wrap policy makes one of each adapter matrix; fitted"""
OVERLAP_SHARE = 0.208
OVERLAP_SOURCE = "share of communication that FSDP and DDP hide behind compute (fitted)"

HOST_BYTES_PER_S, HOST_NODE_BYTES_PER_S = 60e9, 200e9
HOST_ADAM_BYTES = 28.0
"""host memory traffic of one parameter in DeepSpeed's CPU Adam: fp32 weight, gradient, two moments read, three written"""
NVME_BYTES_PER_S = 3.2e9
OFFLOAD_SOURCE = "assumed: server memory 60 GB/s for one process, 200 for all of a node, NVMe 3.5/3 GB/s (Transformers docs, deepspeed)"

# --- CPU --------------------------------------------------------------------------------------------------------------
GEMM_CEILING_CPU = 0.6
GEMM_MEASURED_CPU = 0.93
"""share of the data-sheet rate, and of a measured square product, that a training step's products reach on a CPU"""
CPU_READ_REALISED = 0.8
CPU_ELEMENTWISE_REALISED = 0.35
"""share of the memory bandwidth for reading weights, and for operators that write fresh memory (page faults)"""
CPU_COMPILED_READ_GAIN = 1.2
"""compiled decoding reads weights faster: 43.6 against 30.7 tokens/s, less the launches saved (88M Llama, this project)"""
CPU_ATTENTION_REALISED, CPU_ATTENTION_HALF_LENGTH = 1.14, 280.0
"""scaled_dot_product_attention on a CPU, over the float32 rate of the products: that much for long sequences, half at this
length (forward and backward of 8 heads of 64, 256 to 2048 tokens, in float32 and bf16, on 2 AVX-512 cores, this project)"""
CPU_STEP_SOURCE = "profiles of 10M-56M Llama training steps on 2 shared AVX-512 cores, CPU time a thread (this project)"
CPU_CORE_FLOPS = 40e9
CPU_CORE_SOURCE = "assumed: 2.5 GHz x 16 fused fp32 operations reached a core (AVX2-class), where nothing was measured"
CPU_BYTES_PER_S = 15e9
CPU_BYTES_SOURCE = "assumed: one or two DDR4 channels reached by one process, where nothing was measured"
CPU_OPERATOR_SECONDS = 8e-6
CPU_BF16_EMULATION = 3.1
CPU_BF16_SOURCE = (
    "bf16 without bf16 instructions took 3.1 times fp32 (17M Llama, AVX-512 CPU, measured by this project)"
)

COLLATE_SECONDS_A_TOKEN = 2.0e-7
COLLATE_SOURCE = (
    "benchmarks/results/collate.json: 190 to 205 ns a token to batch in the training process; workers hide it"
)

OVERSUBSCRIBED = 0.5
"""Share of the rate that is left per doubling of threads over the usable CPUs; runs lost 4 to 45 times
(https://github.com/llmmanorg/llmman/issues/322, https://github.com/ollama/ollama/issues/17916): this is the mild end."""
