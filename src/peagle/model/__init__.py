"""The target model: a decoder described by its configuration, its KV cache and its passes."""
