"""OpenAI's Realtime protocol (GA names), over WebSocket and WebRTC.

:mod:`~parley_gateway.apis.realtime.conversation` translates between it and the agent's protocol without
any network; the rest carries its events. The routes are in :mod:`~parley_gateway.apis.realtime.routes`.
"""
