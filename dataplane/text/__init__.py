"""Text to tokens in a sandboxed child, since a model's tokenizer and chat template are a stranger's programs; and back.

The parent speaks to the child through :class:`dataplane.text.client.TokenizerClient` and never loads either itself.
"""
