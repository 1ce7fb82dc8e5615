"""What the user's files say: hardware, model, data. The edge where outside text becomes values; nothing here imports torch."""
