def look_at(trainer: Trainer) -> dict:
    """How the model is wrapped, over how many processes its states are divided, on what device."""
    engine = trainer.model_wrapped
    found = {
        "wrapper": type(engine).__name__,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": trainer.args.device.type,
    }
    if not isinstance(engine, DeepSpeedEngine):
        return found
    return found | {"zero_stage": engine.zero_optimization_stage(), "shards": shards(engine)}


{% if plan.parallel.expected.zero_stage == 3 %}
def shards(engine: DeepSpeedEngine) -> int:
    """The weights, over what one process keeps of them."""
    weights = list(engine.module.parameters())
    return round(sum(p.ds_numel for p in weights) / sum(p.ds_tensor.numel() for p in weights))
{% else %}
def shards(engine: DeepSpeedEngine) -> int:
    """The trained weights, over those whose optimizer states one process keeps."""
    trained = sum(p.numel() for p in engine.module.parameters() if p.requires_grad)
    return round(trained / sum(part.numel() for part in engine.optimizer.single_partition_of_fp32_groups))
{% endif %}
