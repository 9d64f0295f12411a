"""What is asked of the gateway: orders, and words of the operator."""

from gateway.ops.api.asks import SayRequest
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.shapes import SayReceipt
from gateway.orders import ControlRequest, ControlResponse


async def carry_out_order(desk: ApiBackend, asked: ControlRequest) -> ControlResponse:
    """Carry out an order."""
    return await desk.services.carry_out_order(asked)


async def say_as_operator(desk: ApiBackend, said: SayRequest) -> SayReceipt:
    """Say something as the operator."""
    return SayReceipt(seq=await desk.services.say_as_operator(said.text))
