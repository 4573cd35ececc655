"""A voice agent on Parley, for Pipecat's development runner.

    pip install . ./clients/parley-client ./clients/pipecat-parley "pipecat-ai[runner,webrtc]"
    python clients/pipecat-parley/examples/agent.py -t webrtc      # and open the page that it names

``PARLEY_SERVER`` names the server (default: 127.0.0.1:8001).
"""

import os

from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.llm_service import FunctionCallParams
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner
from pipecat_parley import ParleyLLMService, ParleySTTService, ParleyTTSService

SERVER = os.environ.get("PARLEY_SERVER", "127.0.0.1:8001")
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."


async def get_weather(params: FunctionCallParams, city: str, day: str | None = None) -> None:  # noqa: ARG001
    """Get the weather in a city.

    Args:
        params: of the call.
        city: The name of the city.
        day: The day, if it is not now.
    """
    await params.result_callback({"temperature": 8, "sky": "foggy"})  # made up


async def run_agent(transport: BaseTransport, *, handle_sigint: bool = True) -> None:
    """Talk to whoever is at the other end, until they leave."""
    stt = ParleySTTService(server=SERVER)
    llm = ParleyLLMService(server=SERVER, settings=ParleyLLMService.Settings(system_instruction=PROMPT))
    tts = ParleyTTSService(server=SERVER)
    context = LLMContext(tools=ToolsSchema([get_weather]))
    user, assistant = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    pipeline = Pipeline([transport.input(), stt, user, llm, tts, transport.output(), assistant])
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    worker = PipelineWorker(pipeline, params=params)

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


async def bot(runner_args: RunnerArguments) -> None:
    """What the runner calls for each client."""
    audio = {"audio_in_enabled": True, "audio_out_enabled": True}
    transport = await create_transport(runner_args, {"webrtc": lambda: TransportParams(**audio)})
    await run_agent(transport, handle_sigint=runner_args.handle_sigint)


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
