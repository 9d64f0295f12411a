"""What is asked of the gateway: orders, and words of the operator."""

from gateway.ops.api.asks import Say
from gateway.ops.api.reading import Desk
from gateway.ops.api.shapes import Heard
from gateway.orders import Answer, Order


async def order(desk: Desk, asked: Order) -> Answer:
    """Carry out an order."""
    return await desk.services.carry_out_order(asked)


async def say(desk: Desk, said: Say) -> Heard:
    """Say something as the operator."""
    return Heard(seq=await desk.services.say_as_operator(said.text))
