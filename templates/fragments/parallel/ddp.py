def look_at(trainer: Trainer) -> dict:
    """How the model is wrapped, on what device, and among how many processes."""
{% if plan.choice.compile == "default" %}
    model = trainer.model_wrapped._orig_mod  # torch.compile's wrapper is around it
{% else %}
    model = trainer.model_wrapped
{% endif %}
    return {
        "wrapper": type(model).__name__,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": " and ".join(sorted({p.device.type for p in model.parameters()})),
    }
