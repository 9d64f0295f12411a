"""Process of the embedded model: `python -m agent.models.local_server WEIGHTS`.

Not in the gateway's process because building `xllamacpp.Server` holds the interpreter for over a
second, and because a crash of native code must not end the gateway. Writes one line of JSON to its
output, `{"url": ..., "key": ...}` or `{"error": ...}`, then serves until its input closes. The
kernel closes it when the parent ends, for whatever reason. On Linux the kernel also kills this
process then at once.
"""

import ctypes
import json
import os
import secrets
import signal
import sys

MODEL_NAME = "SmolLM2-135M-Instruct"
CONTEXT_TOKENS = 8192
"""Window that SmolLM2 was trained for."""
_SLOTS = 4
"""Conversations whose prompts stay evaluated at the same time."""
_BATCH_TOKENS = 128
"""Tokens evaluated at once; after each batch the server checks for a cancelled request. Half a
second here."""
_CACHE_MIB = 128
"""MiB of evaluated prompts beside the slots (llama.cpp's own default, 8192, is more than a small
host has)."""
_THREADS = 4
"""Limit of threads: steps of so small a model are short, and every thread is one more to wait for.
llama.cpp starts one for each core of the host, also if this process may use fewer (measured on two
cores: 0.9 s with 2, 3.1 s with 32)."""
_PR_SET_PDEATHSIG = 1
"""Number of the option, from prctl(2)."""


def main(weights: str) -> None:
    """Serve `weights` on a free loopback port, protected by a key."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which then closes our input
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    line = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of llama.cpp goes where its log goes
    # Threads that spin while they wait for each other nearly stop when anything else needs a core.
    # ggml's barriers are those of OpenMP, which reads this variable when it is loaded (libgomp
    # manual, 4.20 and 4.24: without it, threads spin 300,000 times; llama.cpp's own `poll` does not
    # change that). Measured on two cores beside one busy process: 4 to 14 s for an answer that
    # takes 1.1 to 1.5 s with it.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        import xllamacpp  # noqa: PLC0415 - the parent must be able to import this file without it

        params = xllamacpp.CommonParams()
        params.model.path = weights
        params.model_alias = {MODEL_NAME}
        params.n_ctx = CONTEXT_TOKENS
        params.n_parallel = _SLOTS
        params.kv_unified = True  # otherwise the window is split between the slots
        params.cache_idle_slots = (
            False  # they would be emptied, and pinned ones not filled again (llama.cpp#28139)
        )
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.cache_ram_mib = _CACHE_MIB
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(_THREADS, cores)
        params.cpuparams.poll = params.cpuparams_batch.poll = (
            0  # the same for a wheel with its own threads
        )
        params.api_keys = [key := secrets.token_urlsafe(24)]
        server = xllamacpp.Server(params)
    except Exception as error:  # noqa: BLE001 - whatever native code raises: the parent tells the operator
        line.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        line.flush()
        os._exit(1)
    line.write(json.dumps({"url": server.listening_address, "key": key}) + "\n")
    line.flush()
    sys.stdin.buffer.read()
    os._exit(0)  # native threads would delay an orderly exit


if __name__ == "__main__":
    main(sys.argv[1])
