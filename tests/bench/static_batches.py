"""Transformers' ``generate`` at fp32, one static batch after another: a line of JSON in, a line out when it is done.

Prompts are padded on the left to the longest, and all rows go on until the longest answer is whole.
"""

import json
import os
import sys

import torch
import transformers


def main(folder: str) -> None:
    """Load the model, say so, and compute until the input ends."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    model.generation_config = transformers.GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0)
    print("ready", flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        compute(model, batch["prompts"], batch["output_tokens"])
        print("done", flush=True)


@torch.inference_mode()
def compute(model: transformers.PreTrainedModel, prompts: list[list[int]], output_tokens: int) -> None:
    """Generate exactly ``output_tokens`` after each prompt."""
    longest = max(map(len, prompts))
    given = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(given)
    for row, prompt in enumerate(prompts):
        given[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    out = model.generate(given, attention_mask=mask, max_new_tokens=output_tokens, min_new_tokens=output_tokens)
    assert out.shape == (len(prompts), longest + output_tokens), out.shape


if __name__ == "__main__":
    main(sys.argv[1])
