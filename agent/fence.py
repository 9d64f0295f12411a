"""Around somebody else's words, where a model reads them. Pure.

What stands between the two lines cannot end them: the seal is a hash over the words themselves and over what nobody but
the gateway knows beforehand, and the words are looked through for it.
"""

import hashlib

from agent.journal import to_single_line
from gateway.safety.marks import reveal_hidden

SEAL_CHARS = 12
MAX_LABEL_CHARS = 160


def fence_text(text: str, *, about: str, key: str) -> str:
    """The text between two lines that say whose it is. The same of all three is the same bytes.

    What hides words in it is told. `about`: what it is and where it is from; may be untrusted. `key`: names the call;
    new for each.
    """
    number, seal, text = 0, "", reveal_hidden(text)
    while not seal or seal in text:
        said = f"{key}\0{number}\0{about}\0{text}".encode("utf-8", "surrogatepass")
        seal = hashlib.sha256(said).hexdigest()[:SEAL_CHARS]
        number += 1
    what = to_single_line(about[: 2 * MAX_LABEL_CHARS], MAX_LABEL_CHARS).replace("<", "(").replace(">", ")")
    return f"<<<untrusted {seal} {what}\n{text}\nuntrusted {seal}>>>"
