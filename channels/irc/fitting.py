"""How a post is cut for the connection that there is, or for the longest names where there is none."""

from channels.irc.compose import gathered
from channels.irc.config import IrcConfig
from channels.irc.identity import is_direct, is_room
from channels.irc.paging import pages_of, surely_bytes
from channels.irc.senders import target_of
from channels.irc.sending import calling_few
from channels.irc.session import Session
from gateway.events import Post


def split(post: Post, config: IrcConfig, session: Session | None) -> tuple[str, ...]:
    """The messages of one page of it."""
    cut, target = pages(post, config, session), target_of(post.to.room, post.to.thread)
    page, limits = cut[min(post.page, len(cut)) - 1], session.multiline if session else None
    page = calling_few(session, post.to.room, page) if session else page
    return (
        gathered(page, body_bytes(target, config, session), limits) if limits and not is_direct(post.to.room) else page
    )


def pages(post: Post, config: IrcConfig, session: Session | None) -> tuple[tuple[str, ...], ...]:
    """All of its pages, as messages."""
    target = target_of(post.to.room, post.to.thread)
    surely = surely_bytes(config.nick, target)
    # Who is asked to approve something must have seen all of it.
    page_lines = 0 if post.style == "notice" and not post.private else config.page_lines
    most = body_bytes if is_direct(post.to.room) else _line_bytes  # what is for one person goes line by line
    nick = session.nick if session else config.nick
    more = f"{nick}: more" if is_room(post.to.room) else "more"  # what always works there, with any command prefix
    return pages_of(post.text, surely, most(target, config, session), page_lines, more)


def _line_bytes(target: str, config: IrcConfig, session: Session | None) -> int:
    """How long a line may be: where messages may have several, longer than what fits one of them."""
    limits = session.multiline if session else None
    return max(body_bytes(target, config, session), limits.max_bytes - 1 if limits else 0)


def body_bytes(target: str, config: IrcConfig, session: Session | None) -> int:
    """How much text fits one message."""
    return session.max_body_bytes(target) if session else surely_bytes(config.nick, target)
