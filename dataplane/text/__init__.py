"""Text to tokens and back, in a sandboxed child: a model's tokenizer and chat template are a stranger's programs.

The parent speaks to the child through :class:`dataplane.text.client.TokenizerClient` and never loads either itself.
"""
