"""The worker's command line and the file of tenants' shares."""

import argparse
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dataplane.contracts import ids, precision, strict_json
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.generation import QUEUE_LIMIT_PER_TENANT
from dataplane.contracts.parallel import Parallel

_MAX_TENANTS_BYTES = 1024 * 1024
_DEFAULT_RUNTIME_DIR = Path("~/.cache/pagoda/runtime")
_MAX_SOCKET_PATH_BYTES = 107
_ENGINE = EngineSettings()


class SettingsError(ValueError):
    """A command line that cannot be followed; the sentence says what to change."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker was told. ``port`` None: no TCP; ``model`` None: wait warm for the fleet."""

    host: str
    port: int | None
    model: Path | None
    engine: EngineSettings
    parallel: Parallel
    tenants: dict[str, Share]
    trust_tenant_header: bool
    socket: Path | None
    control_socket: Path | None
    spool_dir: Path | None
    spool_max_mb: int
    control_url: str | None
    replica_id: str
    runtime_dir: Path
    drain_s: float
    stall_s: float
    client_patience_s: float
    queue_wait_s: float | None
    queue_limit: int


class _TenantShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share as a person writes it: a misspelt field is refused."""

    guarantee_tokens: int = 0
    cap_tokens: int | None = None
    weight: int = 1


def read_tenants(raw: bytes) -> dict[str, Share]:
    """Read the file of ``--tenants``: a JSON object ``{tenant: {"guarantee_tokens", "cap_tokens", "weight"}}``.

    Raises:
        SettingsError: not of that form; the message names the tenant and the field.
    """
    try:
        values = strict_json.loads_object(raw, _MAX_TENANTS_BYTES)
        shares = msgspec.convert(values, dict[str, _TenantShare])
    except (strict_json.StrictJsonError, msgspec.ValidationError) as error:
        raise SettingsError(f"the tenants file cannot be used: {error}") from error
    for name, share in shares.items():
        cap_tokens = 1 if share.cap_tokens is None else share.cap_tokens
        if not name or share.guarantee_tokens < 0 or share.weight < 1 or cap_tokens < 1:
            raise SettingsError(f"tenant {name!r}: guarantee_tokens is 0 or more, cap_tokens and weight are 1 or more")
        if share.cap_tokens is not None and share.cap_tokens < share.guarantee_tokens:
            raise SettingsError(f"tenant {name!r}: cap_tokens is below guarantee_tokens")
    return {name: Share(share.guarantee_tokens, share.cap_tokens, share.weight) for name, share in shares.items()}


def parse(arguments: Sequence[str]) -> Settings:
    """Read the command line.

    Raises:
        SettingsError: arguments that contradict each other, or a file that cannot be read.
        SystemExit: argparse's own refusals and ``--help``.
    """
    options = _parser().parse_args(arguments)
    if options.port is None and options.socket is None:
        raise SettingsError("nothing to serve on: give --port, --socket, or both")
    if options.model is None and options.control_socket is None:
        raise SettingsError("without --model the fleet attaches one: give --control-socket")
    parallel = Parallel(options.tensor_parallel, options.pipeline_parallel)
    if options.model is None and parallel.ranks > 1:
        raise SettingsError("the fleet does not plan for models on several processes: give --model")
    if options.model is not None and not options.model.is_dir():
        raise SettingsError(f"--model {options.model} is not a folder")
    if options.trust_tenant_header and not _is_loopback(options.host):
        raise SettingsError(f"--trust-tenant-header is for loopback addresses only, not for --host {options.host}")
    for path in (options.socket, options.control_socket):
        if path is not None and len(str(path).encode()) > _MAX_SOCKET_PATH_BYTES:
            raise SettingsError(f"the socket path {path} is over {_MAX_SOCKET_PATH_BYTES} bytes; use a shorter one")
    return Settings(
        host=options.host,
        port=options.port,
        model=options.model,
        engine=EngineSettings(
            dtype=options.dtype,
            kv_dtype=options.kv_dtype,
            device=options.device,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            kv_memory_mb=options.kv_memory_mb,
            block_size=options.block_size,
            prefix_cache=not options.no_prefix_cache,
        ),
        parallel=parallel,
        tenants=_tenants(options.tenants),
        trust_tenant_header=options.trust_tenant_header,
        socket=options.socket,
        control_socket=options.control_socket,
        spool_dir=options.spool_dir,
        spool_max_mb=options.spool_max_mb,
        control_url=options.control_url,
        replica_id=options.replica_id or ids.new_id(ids.Kind.REPLICA),
        runtime_dir=(options.runtime_dir or _DEFAULT_RUNTIME_DIR).expanduser(),
        drain_s=options.drain_seconds,
        stall_s=options.stall_seconds,
        client_patience_s=options.client_patience_seconds,
        queue_wait_s=options.queue_wait_seconds,
        queue_limit=options.queue_limit,
    )


def _tenants(path: Path | None) -> dict[str, Share]:
    if path is None:
        return {}
    try:
        return read_tenants(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"--tenants {path}: {error.strerror}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dataplane.worker", description="Serve one model over an OpenAI-compatible API."
    )
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a model folder; without it the worker waits warm for the fleet")
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, help="TCP port; 0 takes a free one")
    add("--dtype", choices=precision.WEIGHTS, default=_ENGINE.dtype, help="precision of the weights (default fp32)")
    add("--kv-dtype", choices=precision.KV_CHOICES, default=_ENGINE.kv_dtype, help="of keys and values (default auto)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute (default auto)")
    add("--max-num-seqs", type=_positive, default=32, help="most sequences that run at once (default 32)")
    add("--max-model-len", type=_positive, help="most tokens of a sequence (default: the model's context)")
    add("--kv-memory-mb", type=_positive, help="memory of the KV pool in MiB (default: by what is free)")
    add("--block-size", type=int, choices=(8, 16, 32), default=8, help="tokens in a KV block (default 8)")
    add("--tensor-parallel", type=_positive, default=1, metavar="N", help="processes that share each layer (default 1)")
    add("--pipeline-parallel", type=_positive, default=1, metavar="N", help="stages that share the layers (default 1)")
    add("--no-prefix-cache", action="store_true", help="compute every prompt in full")
    add("--tenants", type=Path, metavar="FILE", help="JSON {tenant: {guarantee_tokens, cap_tokens, weight}}")
    add("--trust-tenant-header", action="store_true", help="believe X-Pagoda-* headers on a loopback port")
    add("--socket", type=Path, help="serve HTTP on this Unix socket too; its callers are trusted")
    add("--control-socket", type=Path, help="take the fleet's calls on this Unix socket")
    add("--spool-dir", type=Path, help="write usage records here")
    add("--spool-max-mb", type=_positive, default=256, help="where a full spool stops admission (default 256)")
    add("--control-url", help="ship usage records to this control plane (secret in PAGODA_INTERNAL_SECRET)")
    add("--replica-id", help="what the fleet calls this worker")
    add("--runtime-dir", type=Path, help=f"packed weights are kept here (default {_DEFAULT_RUNTIME_DIR})")
    add("--drain-seconds", type=float, default=30.0, help="what SIGTERM leaves to running requests (default 30)")
    add("--stall-seconds", type=float, default=10.0, help="work without progress is unhealthy after (default 10)")
    add("--client-patience-seconds", type=float, default=30.0, help="a client that does not read is cut (default 30)")
    add("--queue-wait-seconds", type=float, help="a request without a token after so long is a 504 (default: it waits)")
    add("--queue-limit", type=_positive, default=QUEUE_LIMIT_PER_TENANT, help="most of a tenant's requests that wait")
    return parser
