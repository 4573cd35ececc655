"""The page beside a command."""

from __future__ import annotations

import socket

import httpx2

from parley_client.commands.page import serve_page

NOWHERE = "127.0.0.1:1"


async def get(url):
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_the_page_is_there_for_as_long_as_it_is_needed():
    async with serve_page(NOWHERE) as url:
        page = await get(f"{url}/")
        assert page.status_code == 200
        assert "<title>Parley</title>" in page.text
        assert (await get(f"{url}/readyz")).status_code == 503  # there is no server behind it
    port = int(url.rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


async def test_where_its_port_is_taken_it_has_another():
    async with serve_page(NOWHERE) as first, serve_page(NOWHERE) as second:
        assert first != second
        assert (await get(f"{second}/")).status_code == 200


async def test_without_the_gateways_packages_there_is_none(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with serve_page(NOWHERE) as url:
        assert url is None
