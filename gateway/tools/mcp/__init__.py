"""Tools of Model Context Protocol servers: programs of ours, or addresses, each supervised, none of them trusted."""
