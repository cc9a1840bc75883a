"""Model folders: safetensors and JSON, validated when loaded."""
