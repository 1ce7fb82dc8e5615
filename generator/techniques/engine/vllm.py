from generator.techniques.base import Published
from generator.techniques.engines import GpuEngine


class Vllm(GpuEngine):
    """vLLM: paged keys and values, continuous batching, CUDA graphs, tensor parallelism, an OpenAI-compatible server.

    What it does: computes all requests of a moment together, and keeps their cache in pages, so that none is reserved.
    When it loses: in time to start (it compiles and captures graphs), and where one short answer is all that is wanted.
    Known problems: pins torch and Transformers to versions of its own; reserves its share of the GPU at once.
    """

    name = "vllm"
    engine = "vllm"
    role = "serve-vllm"
    leaf = "vllm"
    command = ("vllm", "serve")
    evidence = (
        Published(
            "https://arxiv.org/abs/2309.06180",
            "PagedAttention: 2 to 4 times the throughput of FasterTransformer and Orca at the same latency",
        ),
    )
