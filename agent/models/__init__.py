"""Language models behind one protocol, `agent.models.base.Model`.

- `base.py`: the vocabulary: requests, stream chunks, the `Model` protocol, the tree of errors.
- `settings.py`: what a provider declares: its settings, and what the gateway asks of them. Those of
  our own are in `gateway/plugins/providers.py`.
- `config.py`: checks of `llm.providers` and `llm.models`, and `build_model`, which builds models
  from them. `adapt.py`: requests in the form that a model can take.
- `client.py`: the one way of a request: choose the model, plan its prompt cache, stream, account.
- `breaker.py`: the state of a circuit breaker.
- `http.py`: the HTTP client that all remote models share, errors by status and body, server-sent
  events.
- `anthropic.py`, `anthropic_wire.py`: the Messages API: responses and the model, requests.
  `vertex.py`: the same at Google's Vertex AI.
- `openai.py`: chat completions of OpenAI and compatible servers. `minimax.py`: MiniMax's.
- `gemini.py`: Google's Gemini API: requests, responses and the model.
- `llamacpp.py`: chat completions of a llama.cpp server, with its slots and prompts evaluated ahead
  of time.
- `local.py`, `local_server.py`: the embedded model and its child process.
- `leaks.py`: tool calls that a model wrote as text.
- `scripted.py`: the model for tests, demos and dry runs.

Rules: a request is translated at the call and nowhere else. `anthropic_wire.py` does no IO. Models
do not retry, `ModelClient` does. Errors hold no secrets. Heavy libraries (httpx, xllamacpp) are
imported at their first use.
"""
