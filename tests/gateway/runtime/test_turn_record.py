"""The one line of an autonomous turn."""

import pytest

from agent.tools import CALL_CAPABILITY
from gateway.core.events import ToolCallRecord, TurnStep
from gateway.runtime.turn_record import MAX_NOTE_CHARS, compose_note


def called(name: str, arguments: str = "{}", *, error: bool = False) -> TurnStep:
    call = ToolCallRecord(id="c", name=name, arguments=arguments, result="", error=error)
    return TurnStep(text="", calls=(call,))


ATTEND = called("attend", '{"room": "#dev", "reason": "nobody\\nanswers Tom"}')


@pytest.mark.parametrize(
    ("steps", "text", "note"),
    [
        ((), "", ""),
        ((called("read_room"),), "", ""),
        ((called("yield_to_user", '{"note": "  I looked at\\n#dev. "}'),), "", "I looked at #dev."),
        ((ATTEND, called("yield_to_user", '{"note": "Tom waits."}')), "", "Tom waits."),
        ((ATTEND, called("yield_to_user")), "", "attended #dev: nobody answers Tom"),
        ((ATTEND, called("remind", '{"text": "look again"}')), "I see.",
            "attended #dev: nobody answers Tom; set a reminder: look again"),
        ((called("attend", '{"room": "#dev"}', error=True),), "Nothing to do.", "Nothing to do."),
        ((called("tell", '["no object"]'), called("tell", "no JSON")), "", "told; told"),
        ((called("stay_silent", '{"note": 7}'),), "", "7"),
        ((called(CALL_CAPABILITY.name, '{"capability": "stay_silent", "args": {"note": "no"}}'),),
            "", "no"),
        ((called("yield_to_user", '{"note": "' + "x" * 900 + '"}'),), "", "x" * MAX_NOTE_CHARS),
    ],
)  # fmt: skip
def test_the_line_of_a_turn_is_its_own_or_made_of_what_it_did(
    steps: tuple[TurnStep, ...], text: str, note: str
) -> None:
    assert compose_note(steps, text) == note
