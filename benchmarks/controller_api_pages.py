"""An API server that only lists: BrokerGroups and pods in pages, as kube-apiserver gives them. Says its port, serves until killed.

python controller_api_pages.py 10000
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "operator")]

import asyncio  # noqa: E402

from aiohttp import web  # noqa: E402

from benchmarks.controller_in_process import MEMBERS, group_object, pod_object  # noqa: E402


class Pages:
    """Every object of a kind, each as its JSON."""

    def __init__(self, objects: list[bytes]) -> None:
        self._objects = objects

    def page(self, start: int, limit: int) -> bytes:
        end = min(start + limit, len(self._objects)) if limit else len(self._objects)
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < len(self._objects) else {})}
        head = json.dumps({"kind": "List", "apiVersion": "v1", "metadata": metadata})[:-1].encode()
        return head + b', "items": [' + b",".join(self._objects[start:end]) + b"]}"


async def main(count: int) -> None:
    groups = Pages([json.dumps(group_object(number)).encode() for number in range(count)])
    pods = Pages([json.dumps(pod_object(number, one)).encode() for number in range(count) for one in MEMBERS])

    async def answer(request: web.Request) -> web.StreamResponse:
        query = request.query
        if "watch" in query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(3600)
            return response
        pages = pods if request.path.endswith("/pods") else groups
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        return web.Response(body=pages.page(start, limit), content_type="application/json")

    async def missing(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "reason": "NotFound", "message": request.path}, status=404)

    application = web.Application()
    for path in ("/api/v1/pods", f"/apis/{group_object(0)['apiVersion']}/brokergroups"):
        application.router.add_get(path, answer)
    application.router.add_get("/{rest:.*}", missing)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
