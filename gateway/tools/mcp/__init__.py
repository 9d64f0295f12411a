"""Tools of Model Context Protocol servers: local programs or HTTP addresses, each supervised, none
trusted.

- `client.py`: `McpServers` for all servers, `McpServerClient` for one: started, restarted, called,
  closed.
- `connection.py`: one connection by the library `mcp`, over stdio or HTTP with limits. Only loaded
  where servers are configured.
- `convert.py`: names, schemas, descriptions and results, from the server's form to ours. Pure.
- `review.py`: changed definitions of tools, which are off until an admin approves them.

Rules: nothing waits for a server except a call to it. Texts of a server are untrusted: descriptions
are cut and cleaned, results are marked as foreign, log lines quote nothing but at the level debug.
Secrets of the configuration are removed from its results as from those of all tools.
"""
