"""Strict fakes on loopback: a request that the real server would refuse is refused.

- `ircd`: an IRC server. `bot_api`: Telegram. `discord_api`: Discord, REST and gateway.
- `model_api`: the Messages API and chat completions, with their rules, caches and usage.
  `count_tokens_api`: token counts. `llama_api`: a llama.cpp server. `gemini_api`: Google's Gemini
  API. `minimax_api`: MiniMax. `vertex_api`: Vertex AI, with Google's tokens.
- `proxy`: SOCKS5 and HTTP. `web_server`: a hostile web site. `ports`: ports and life of a server.
"""
