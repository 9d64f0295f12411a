"""Translation of what people read in chats: `_("...")` and `ngettext`, in the language of the event
at hand.

Mark a text with `_` where it is composed, with named placeholders: `_("Model:
{model}.").format(model=model)`. A text that stands outside of functions is marked with `N_`, and
translated by `_` where it is used. Untrusted text is only ever an argument of `format`.

Text for the model, log messages and the command line are English, and not marked. English costs a
look at a context variable; a catalog is read when its language is first used.
"""

import gettext
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from gateway.core.context_var import set_within

LOCALE_DIR: Final = Path(__file__).parent.parent / "locale"
"""Catalogs, as `<language>/LC_MESSAGES/reverie.mo`. `make messages` writes them."""
DOMAIN: Final = "reverie"

_language: ContextVar[str] = ContextVar("language", default="")
"""Language with a catalog. Empty: English."""


def use_language(tag: str | None) -> AbstractContextManager[None]:
    """Translate into this language within the block, and in tasks started there. None or unknown:
    English.
    """
    tag = (tag or "")[: _MAX_TAG_CHARS + 1].replace("_", "-").lower()
    return set_within(_language, _find_language(tag))


def current_language() -> str:
    """Return the language of the block, for what is written later (`use_language`). Empty:
    English.
    """
    return _language.get()


def language_for(room: str | None, person: str | None, *, direct: bool) -> str | None:
    """Return the tag of the language to write in: the room's, else in a direct chat that of the
    person's client.
    """
    return room or (person if direct else None)


@cache
def languages() -> frozenset[str]:
    """Return the languages with a catalog, without English."""
    return frozenset(
        path.parent.parent.name for path in LOCALE_DIR.glob(f"*/LC_MESSAGES/{DOMAIN}.mo")
    )


@lru_cache(maxsize=256)
def _find_language(tag: str) -> str:
    """Return the catalog for a BCP 47 tag: its own, else that of the language without region.
    Empty: English.
    """
    parts = tag.split("-") if len(tag) <= _MAX_TAG_CHARS else []
    while parts:
        for name in languages():
            if name.replace("_", "-").lower() == "-".join(parts):
                return name
        parts.pop()
    return ""


_MAX_TAG_CHARS: Final = 35
"""https://www.rfc-editor.org/rfc/rfc5646#section-4.4.1; a longer one has no catalog."""


@cache
def _catalog(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, LOCALE_DIR, [language])


def _(message: str) -> str:
    language = _language.get()
    return _catalog(language).gettext(message) if language and message else message


def ngettext(one: str, many: str, count: int) -> str:
    """Return the translation of the form for this number."""
    language = _language.get()
    return (
        _catalog(language).ngettext(one, many, count) if language else one if count == 1 else many
    )


def N_(message: str) -> str:  # noqa: N802 - the name that gettext's tools know
    """Mark a text for translation, and return it as it is."""
    return message
