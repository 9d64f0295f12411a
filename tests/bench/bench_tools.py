"""How often the right tool is chosen: `python -m tests.bench.bench_tools [--embedded] [--count N]`.

200 requests, each with the tool that it asks for. They are put to a stand-in that goes by words alone
and, with `--embedded`, to the embedded model, which may answer with the name of a tool and nothing
else. Both read the tools in two forms: all of them described whole, and as a request has them, a few
described and the others named in one line.
"""

import argparse
import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import log

import httpx

from agent.models.local import find_weights
from agent.tools import ENDING_TOOLS, offer_tools
from gateway.core.tool_spec import ToolSpec
from gateway.plugins import find_plugins
from tests.kits.tools import specs_of

CHAT_COMMANDS: dict[str, tuple[str, ...]] = {
    "bash": ("run the shell command {}", "execute `{}` in a shell for me"),
    "copy_file": ("copy the file {} to the public files", "make a copy of the file {}"),
    "edit_file": ("replace a piece of text in the file {}", "change the word in the file {}"),
    "write_file": ("create a file {} with this text", "write a new file named {}"),
    "read_file": ("read the text file {}", "what does the file {} say? read it"),
    "glob": ("list my files by the pattern {}", "which files match the pattern {}?"),
    "grep": ("search my files for {}", "search the files for the expression {}"),
    "view_image": ("look at the image file {}", "look at this image: {}"),
    "send_file": ("post your file {} here", "send the file {} here"),
    "web_fetch": ("read the web page {}", "read what the page {} says"),
    "recall": ("search earlier messages for {}", "what did somebody say earlier about {}?"),
    "read_room": ("read the earlier lines in {}", "read what was said in {}"),
    "who": ("list the people in {}", "who are the people here in {}?"),
    "recap": ("what happened since {}?", "see what happened since {}"),
    "remember": ("remember for good that I like {}", "keep this fact: my friend is {}"),
    "forget": ("forget your notes about {}", "delete your notes on {}"),
    "journal": ("write into your journal about {}", "put {} into your journal"),
    "remind": ("remind me at 18:30 of {}", "set a reminder about {}"),
    "intend": ("keep a plan: {}", "promise that you look at {} later, and keep that plan"),
    "intentions": ("list your intentions about {}", "drop the intention about {}"),
    "tell": ("tell the owner about {}", "tell your owner something: {}"),
    "send_message": ("post {} in another place", "post in the other place: {}"),
    "react": ("put a reaction on the message about {}", "set a reaction: {}"),
    "edit_own": ("edit your post about {}", "edit your last post: {}"),
    "delete_own": ("delete your post about {}", "delete your last post on {}"),
    "set_topic": ("change the topic of this room to {}", "set the topic to {}"),
    "go_quiet": ("be quiet until {}", "stay quiet until {}"),
    "rest_until": ("rest until {}", "rest and wake up at {}"),
    "continue_task": ("go on by yourself with {}", "go on with {} by yourself after this"),
    "load_skill": ("read the skill {}", "load the skill {}"),
    "fetch_evidence": ("read in full the result {}", "show the whole result {} in full"),
    "stay_silent": ("post nothing about {}, stay silent", "be silent on {} and post nothing"),
}
FILLED = ("tea", "the bridge in Bern", "notes/a.md")
WORDS = re.compile(r"[a-z]+")
Choose = Callable[[str, Sequence[ToolSpec], str], Awaitable[str]]


def requests() -> list[tuple[str, str]]:
    """200 requests, and the tool that each asks for."""
    made = [
        (wording.format(filled), tool)
        for filled in FILLED
        for tool, wordings in CHAT_COMMANDS.items()
        for wording in wordings
    ]
    return [*made, *((f"please, {text}", tool) for text, tool in made)][:200]


def words_of(text: str) -> list[str]:
    return [word.removesuffix("s") for word in WORDS.findall(text.lower())]


async def by_words(asked: str, specs: Sequence[ToolSpec], told: str) -> str:
    """The tool whose entry shares the rarest words with the request."""
    entries = {
        spec.name: set(words_of(found[0] if (found := entry_of(spec, told)) else spec.name))
        for spec in specs
    }
    rarity = Counter(word for words in entries.values() for word in words)
    scores = {
        name: sum(log(len(entries) / rarity[word]) for word in {*words_of(asked)} & words)
        for name, words in entries.items()
    }
    return max(sorted(scores), key=lambda name: scores[name])


def entry_of(spec: ToolSpec, told: str) -> list[str]:
    """What a form of the tools says of one."""
    return [
        line for line in told.splitlines() if line.startswith((f"- {spec.name}(", f"{spec.name}: "))
    ]


def whole(specs: Sequence[ToolSpec]) -> str:
    return "\n".join(f"{one.name}: {one.description} {one.schema}" for one in specs)


def on_demand(specs: Sequence[ToolSpec]) -> str:
    described, catalogue = offer_tools(tuple(specs))
    return f"{whole(described)}\n{catalogue}"


class Embedded:
    """The embedded model, held to the names by a grammar."""

    def __init__(self) -> None:
        import xllamacpp  # noqa: PLC0415 - large, and not installed everywhere

        params = xllamacpp.CommonParams()
        params.model.path = str(find_weights())
        params.n_ctx = 8_192
        params.n_parallel = 1
        self._server = xllamacpp.Server(params)
        self._http = httpx.AsyncClient(base_url=self._server.listening_address, timeout=600)

    async def __call__(self, asked: str, specs: Sequence[ToolSpec], told: str) -> str:
        names = " | ".join(f'"{spec.name}"' for spec in specs)
        body = {
            "messages": [
                {"role": "system", "content": f"Choose the tool for the request.\n{told}"},
                {"role": "user", "content": f"{asked}\nWrite the name of the tool alone."},
            ],
            "grammar": f"root ::= {names}",
            "temperature": 0,
            "max_tokens": 12,
        }
        answer = await self._http.post("/v1/chat/completions", json=body)
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


async def measure(choose: Choose, count: int) -> dict[str, int]:
    """How many of the first requests each form has answered with the right tool."""
    specs = [*ENDING_TOOLS, *specs_of(*find_plugins().classes)]
    offered = [spec for spec in specs if spec.name in CHAT_COMMANDS]
    right = Counter[str]()
    for name, told in (("all described", whole(offered)), ("on demand", on_demand(offered))):
        for asked, tool in requests()[:count]:
            right[name] += await choose(asked, offered, told) == tool
    return dict(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    chosen: dict[str, Choose] = {"words alone": by_words}
    if given.embedded:
        chosen["the embedded model"] = Embedded()
    for name, choose in chosen.items():
        for form, right in asyncio.run(measure(choose, given.count)).items():
            print(f"{name}, {form}: {right} of {given.count} right")


if __name__ == "__main__":
    main()
