"""What we lean on in python-telegram-bot: public names, there in the installed version."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import telegram
from telegram.ext import BaseRateLimiter, ExtBot
from telegram.request import BaseRequest, HTTPXRequest

import channels.telegram

SOURCES = sorted(Path(channels.telegram.__file__).parent.glob("*.py"))
LIMITED_METHODS = (
    "send_message send_document send_message_draft send_chat_action edit_message_text edit_message_caption "
    "edit_message_reply_markup delete_message set_message_reaction leave_chat set_chat_description edit_forum_topic "
    "get_chat get_chat_administrators get_chat_member_count"
)
OTHER_METHODS = (
    "get_me get_updates get_webhook_info set_webhook delete_webhook answer_callback_query get_file get_chat_member "
    "get_my_commands set_my_commands delete_my_commands do_api_request request de_json"
)
ATTRIBUTES: dict[type, str] = {
    telegram.Update: "update_id message edited_message channel_post edited_channel_post message_reaction "
    "callback_query my_chat_member chat_member effective_chat effective_user de_json de_list",
    telegram.Message: "message_id date chat from_user sender_chat sender_business_bot text entities caption "
    "caption_entities photo animation video video_note audio voice document sticker venue location contact poll dice "
    "game checklist story forward_origin via_bot is_automatic_forward reply_to_message external_reply quote "
    "is_topic_message message_thread_id media_group_id edit_date new_chat_members left_chat_member new_chat_title "
    "forum_topic_created forum_topic_edited migrate_to_chat_id migrate_from_chat_id api_kwargs",
    telegram.MessageEntity: "type offset length url language user to_dict",
    telegram.MessageReactionUpdated: "chat message_id date user actor_chat old_reaction new_reaction",
    telegram.ChatMemberUpdated: "chat from_user date old_chat_member new_chat_member",
    telegram.CallbackQuery: "id from_user message data",
    telegram.ExternalReplyInfo: "origin venue location contact poll dice sticker game checklist story",
    telegram.Chat: "id type title username first_name last_name",
    telegram.User: "id is_bot first_name last_name username language_code can_read_all_group_messages",
}
"""Class -> the attributes that are read, or the methods that are called."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_only_public_names_are_imported(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "telegram":
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                assert "._" not in f".{node.module}.{name}", f"{node.module}.{name} is the library's own"
                assert hasattr(module, name)


@pytest.mark.parametrize("owner", ATTRIBUTES, ids=lambda owner: owner.__name__)
def test_what_is_read_of_an_object_is_there(owner: type) -> None:
    assert [name for name in ATTRIBUTES[owner].split() if not hasattr(owner, name)] == []


def test_the_methods_of_the_bot_are_there() -> None:
    assert [name for name in OTHER_METHODS.split() if not hasattr(ExtBot, name)] == []
    for name in LIMITED_METHODS.split():
        assert "rate_limit_args" in inspect.signature(getattr(ExtBot, name)).parameters, name


def test_what_we_extend_is_as_it_was() -> None:
    assert {"callback", "args", "kwargs", "endpoint", "data", "rate_limit_args"} < set(
        inspect.signature(BaseRateLimiter.process_request).parameters
    )
    assert list(inspect.signature(BaseRequest.parse_json_payload).parameters) == ["payload"]
    assert {"url", "method", "request_data"} < set(inspect.signature(HTTPXRequest.do_request).parameters)
    assert "httpx_kwargs" in inspect.signature(HTTPXRequest).parameters
