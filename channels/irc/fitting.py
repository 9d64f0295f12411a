"""How a post is cut for the connection that there is, or for the longest names where there is none."""

from channels.irc.compose import pack_bodies
from channels.irc.config import IrcConfig
from channels.irc.identity import is_direct_chat, is_room_name
from channels.irc.paging import paginate, worst_case_body_bytes
from channels.irc.senders import message_target
from channels.irc.sending import break_mass_mentions
from channels.irc.session import IrcSession
from gateway.events import Post


def split_post(post: Post, config: IrcConfig, session: IrcSession | None) -> tuple[str, ...]:
    """The messages of one page of it."""
    cut, target = paginate_post(post, config, session), message_target(post.to.room, post.to.thread)
    page, limits = cut[min(post.page, len(cut)) - 1], session.multiline if session else None
    page = break_mass_mentions(session, post.to.room, page) if session else page
    return (
        pack_bodies(page, max_body_bytes(target, config, session), limits)
        if limits and not is_direct_chat(post.to.room)
        else page
    )


def paginate_post(post: Post, config: IrcConfig, session: IrcSession | None) -> tuple[tuple[str, ...], ...]:
    """All of its pages, as messages."""
    target = message_target(post.to.room, post.to.thread)
    surely = worst_case_body_bytes(config.nick, target)
    # Who is asked to approve something must have seen all of it.
    page_lines = 0 if post.style == "notice" and not post.private else config.page_lines
    most = (
        max_body_bytes if is_direct_chat(post.to.room) else _max_line_bytes
    )  # what is for one person goes line by line
    nick = session.nick if session else config.nick
    more = f"{nick}: more" if is_room_name(post.to.room) else "more"  # what always works there, with any command prefix
    return paginate(post.text, surely, most(target, config, session), page_lines, more)


def _max_line_bytes(target: str, config: IrcConfig, session: IrcSession | None) -> int:
    """How long a line may be: where messages may have several, longer than what fits one of them."""
    limits = session.multiline if session else None
    return max(max_body_bytes(target, config, session), limits.max_bytes - 1 if limits else 0)


def max_body_bytes(target: str, config: IrcConfig, session: IrcSession | None) -> int:
    """How much text fits one message."""
    return session.max_body_bytes(target) if session else worst_case_body_bytes(config.nick, target)
