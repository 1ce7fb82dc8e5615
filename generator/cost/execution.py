"""The exact script that will run, as far as its cost depends on it.

Techniques name what they change as a partial ``Execution`` (their ``effects``); the cost model reads a complete
one and knows no technique. A row of ``perfgen estimate --cases`` becomes one directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.case.optimizer_states import ADAM, OptimizerState
from generator.case.strategies import STRATEGIES, Strategy

CAPTURED = ("reduce-overhead", "max-autotune")
"""values of ``compile`` that replay each pass as a CUDA graph (torch's ``_inductor.list_mode_options``)"""
BYTES = {
    **{"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0},
    **{"gptq-8bit": 1.0, "nf4": 0.5, "gptq-4bit": 0.5},
}

Split = tuple[int, int]
"""(micro-batch, accumulation)"""


@dataclass(frozen=True, kw_only=True)  # without slots: a search copies hundreds of thousands of them
class Execution:
    """One configuration. Batch sizes are sequences; ``seq_len`` is tokens.

    ``weights_dtype`` is how the trained (or served) parameters are stored, ``autocast_dtype`` the compute dtype under
    autocast (``None``: compute in the storage dtype). ``quant`` says how a frozen base is stored (none, nf4, int8,
    gptq-4bit). ``checkpoint_every`` = 0 keeps all
    activations, n checkpoints every n-th block. ``loss_kernel``: plain, chunked (the emitted chunk_loss),
    tiled (TRL's SFTTrainer), fused.
    ``fused_kernels``: none, liger (RMSNorm, RoPE, SwiGLU), foak (fms-acceleration's fused LoRA set), pretraining (the fused
    norms and loss that Megatron, NeMo, llm-foundry and their like bring).
    """

    mode: str = "train"
    micro_batch: int = 1
    accumulation: int = 1
    seq_len: int = 1024
    new_tokens: int = 0
    # precision
    weights_dtype: str = "float32"
    autocast_dtype: str | None = None
    autocast_cache: bool = True
    """autocast keeps the 16-bit copies of trained weights until the forward pass ends (torch's default); False: each lives as long as
    the product that reads it, or what saved it for the backward pass"""
    tf32: bool = False
    sums_dtype: str | None = None
    """in which DeepSpeed sums gradients; None: in that of the weights, its default"""
    # what is trained
    train: str = "full"
    lora_rank: int = 0
    lora_targets: str | tuple[str, ...] = "all-linear"
    lora_upcast: bool = False
    """stock PEFT's prepare_model_for_kbit_training: what is not quantized is upcast to float32"""
    lora_dropout: float = 0.0
    adapter: str = "lora"
    """lora, also rank-stabilized; dora (a trained norm for each output of a weight)"""
    lora_casts: bool = True
    """PEFT casts the input of each adapter to the adapter's float32, of which autocast makes a 16-bit copy again"""
    quant: str = "none"
    packed_keeps: str = ""
    """what products with packed weights keep for the backward pass beside what adapters do: inputs (bitsandbytes before 0.43.2),
    weights (auto-gptq without its kernels unpacks with torch's operators); nothing today"""
    double_quant: bool = True
    """bitsandbytes' nested quantization of the nf4 scales"""
    # memory for time
    optimizer: OptimizerState = ADAM
    optimizer_fused: bool = True
    checkpoint_every: int = 0
    checkpoint_offload: bool = False
    tile_tokens: int = 0
    """norms and feed-forward of a checkpointed block run in tiles of so many tokens, each computed again in the backward pass, and
    adapters share their input; 0: all tokens at once"""
    checkpoint_operators: bool = False
    """a checkpointed block keeps the outputs of attention and of every second product (torchtitan's selective policy "op")"""
    loss_kernel: str = "plain"
    loss_copies: str = "padded"
    """how the plain loss handles logits: padded (Transformers >= 4.49), shifted-kept (4.46-4.48), shifted (older), and
    native (older, in the logits' own dtype: GPT-2 and its relatives); vocab-parallel: Megatron-LM's and nanotron's own"""
    expert_loop: bool = False
    """experts run one after the other (Transformers < 5) instead of as one grouped product"""
    attention: str = "sdpa"
    """eager, sdpa, flash"""
    attention_kernel: str = "flash2"
    """of flash and sdpa: flash2 (FlashAttention-2); flash3 and cudnn are written for Hopper and later"""
    attention_biased: bool = False
    """they add a bias to the scores (ALiBi)"""
    flash_kernels: bool = True
    """False: the device has no FlashAttention kernels (before Ampere), so that sdpa takes the memory-efficient or the plain one"""
    efficient_kernels: bool = True
    """False: nor has it a memory-efficient one that was seen, so that sdpa holds the scores"""
    returns_cache: bool = False
    """training whose forward pass returns keys and values beside the loss (use_cache, on by default before Transformers 5)"""
    repeats_keys: bool = False
    """attention code that copies the key and value heads to all query heads first (Mistral and Mixtral before 4.48; for GPUs without a
    flash kernel)"""
    fused_kernels: str = "none"
    compile: str | None = None
    """None (eager mode), default, regional (each layer by itself), reduce-overhead, max-autotune"""
    # data
    length_shares: tuple[float, ...] = ()
    """quantiles of the examples' lengths as shares of seq_len, equally spaced, where a micro-batch is padded to its longest: time
    only, memory is that of the longest of all; none: every sequence is full"""
    padding_left: float = 1.0
    """how much of that padding remains (none where texts are one after the other, or sorted)"""
    row_order: str = ""
    """how texts come to devices: random, dealt (those of a step so that the devices have about as many tokens at a time), sorted by
    length; "": every device has as many tokens"""
    sorted_batches: int = 1
    """batches of all devices whose texts are sorted together"""
    trained_share: float = 1.0
    """of the tokens, those that are learned from, where output layer and loss see no others: time only, memory is that of a batch in
    which all are"""
    shared_tokens: int = 0
    """that all rows of a micro-batch begin with, and that are computed once for them"""
    padding_free: bool = False
    rows: str = "batch"
    """how the texts of a micro-batch are attended to: batch (together, padded), sdpa (one call each, one after the other in one
    sequence), varlen (one kernel for all of them there)"""
    dataloader_workers: int = 0
    pin_memory: bool = False
    packed_copies: float = 1.0
    """of packed weights, those that an engine holds on this processor over those that it holds on others"""
    threads: int | None = None
    """CPU threads of the compute; None on an accelerator"""
    # generation
    engine: str = ""
    """what serves instead of Transformers' generate: a key of ``generator.cost.engines.ENGINES``; "" is Transformers"""
    cache_dtype: str | None = None
    """of keys and values; None: that of the arithmetic"""
    packed_cache_dtype: str | None = None
    """of keys and values beside packed weights, where this processor has them; None: the engine's, or that of the arithmetic"""
    repeats_heads: bool = False
    """decoding writes grouped keys and values out for all query heads (Transformers before 4.48, and eager attention still)"""
    continuous: bool = False
    """requests come and go: a step computes the next token of all sequences, and prompts of those that come; False: a batch of
    prompts is computed, then all its answers"""
    rows_apart: bool = False
    """each sequence has a cache and a pass of its own, one after the other"""
    direct_step: bool = False
    """Transformers' layers are known to the emitted engine, which computes the next tokens of a static cache past their modules; not
    of a compiled step, not to check proposals, and not of packed weights"""
    draft_tokens: int = 0
    """speculative decoding: tokens that are proposed before each pass of the model; 0: none"""
    draft_acceptance: float = 0.0
    """share of them that the model accepts, each for itself"""
    draft_cost: float = 0.0
    """seconds of proposing one over those of a pass of the model; prompt lookup: 0"""
    draft_params: int = 0
    """parameters of the small model that proposes them; 0: none does"""
    draft_cached: int = 0
    """elements that it keeps of each token"""
    draft_held: int = 0
    """those that it keeps in a cache of Transformers; 0: as many"""
    adapter_bytes: int = 0
    """of an adapter that stays beside the served weights"""
    keeps_all_logits: bool = False
    """generation that makes logits for the whole prompt (Transformers before 4.45)"""
    cache: str = "dynamic"
    """none, dynamic, static, quantized-4bit, offloaded, and tuple (Transformers < 4.36: old and new side by side)"""
    # parallel forms: sizes multiply to the devices used
    strategy: str = "none"
    """a row of ``generator.case.strategies.STRATEGIES``; its properties are in ``sharding``"""
    nodes: int = 1
    """nodes that the devices are spread over, equally"""
    dp_shard: int = 0
    """hsdp: devices that one copy's states are divided over; 0: all of dp"""
    fsdp_version: int = 2
    """1 keeps every checkpointed input and its gradient alive when the block's weights are frozen"""
    flat_gradients: bool = False
    """frozen weights and adapters are one flat parameter, which has a gradient of all of it, and micro-batches add up without being
    reduced (Lightning Fabric's FSDP1 under no_backward_sync): every device sums a gradient of all weights"""
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    sequence_form: str | None = None
    """how ``cp`` devices share a sequence: a row of ``SEQUENCE_FORMS``"""
    ep: int = 1
    sequence_parallel: bool = True
    """tensor parts divide the tokens between their products, too; False: each runs norms and residuals of all of them"""
    own_loop: bool = False
    """tensor parts and stages as the emitted loop has them: each part has the logits whole (the plans of Transformers), a stage keeps
    what it has sent on until its gradient comes (torch's pipelining), and memory is that of the fullest stage"""
    offload_optimizer: str = "none"
    offload_params: str = "none"
    resident_gib: float = 0.0
    """of a served model whose weights are offloaded, what stays on the device; ``host_weights_gib`` is what the host has room for, and
    the rest is on its disk"""
    host_weights_gib: float = 0.0

    def but(self, **changes: object) -> Execution:
        """``dataclasses.replace`` in a twentieth of its time; names are not checked."""
        copy = object.__new__(Execution)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def but_split(self, split: Split) -> Execution:
        """With this micro-batch and accumulation."""
        return self.but(micro_batch=split[0], accumulation=split[1])

    @property
    def sharding(self) -> Strategy:
        """What the strategy divides, gathers and reduces."""
        return STRATEGIES[self.strategy]

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def per_node(self) -> int:
        """Devices used in each node."""
        return max(1, self.devices // self.nodes)

    @property
    def shards(self) -> int:
        """Devices that the states of one copy of the model are divided over."""
        return (self.dp_shard or self.dp) * self.cp

    @property
    def parts(self) -> int:
        """Devices that one copy's weights are divided over, with all that belongs to them."""
        return self.tp * self.pp

    @property
    def owners(self) -> int:
        """Devices that the update of one copy's weights is divided over."""
        return self.parts * (self.shards if self.sharding.divides_states else 1)

    @property
    def steps_directly(self) -> bool:
        """Whether decoding does."""
        rows = not self.engine and self.cache == "static" and self.quant == "none"
        return self.direct_step and rows and not self.compile and not self.draft_tokens

    @property
    def product_dtype(self) -> str:
        """Of the inputs of a linear's products."""
        return self.autocast_dtype or self.weights_dtype

    @property
    def shares_casts(self) -> bool:
        """Whether the micro-batches of a step have one 16-bit copy of each weight between them (division/pipeline.py): a stage whose
        blocks are computed again has them block by block."""
        return self.own_loop and self.pp > 1 and not self.checkpoint_every

    @property
    def compute_dtype(self) -> str:
        """Of what is between them: 8 bits are of products alone (Transformer Engine, torchao.float8)."""
        dtype = self.product_dtype
        return "bfloat16" if dtype == "float8" else dtype
