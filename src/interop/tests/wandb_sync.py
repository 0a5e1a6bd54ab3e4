"""Uploads offline runs with `wandb sync` to a server on this machine, and prints as JSON what the server received.

usage: wandb_sync.py FOLDER PATH...

FOLDER is for the settings and caches of wandb. The output has `runs`, the variables of the requests that create or update a run,
`resumed`, the number of requests for the state of a run that an upload continues, `history`, the values of each step, and
`exit_codes`. Values that are not finite are texts.
"""

import gzip
import http.server
import json
import math
import os
import subprocess
import sys
import threading

folder, paths = sys.argv[1], sys.argv[2:]
received = {"runs": [], "resumed": 0, "history": [], "exit_codes": []}


def finite(values):
    return {key: value if not isinstance(value, float) or math.isfinite(value) else str(value) for key, value in values.items()}


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = json.loads(body)
        if request.get("operationName") == "UpsertBucket":
            received["runs"].append(request["variables"])
        elif request.get("operationName") == "RunResumeStatus":
            received["resumed"] += 1
        elif self.path.endswith("/file_stream"):
            lines = request.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            received["history"] += [finite(json.loads(line)) for line in lines]
            received["exit_codes"] += [request["exitcode"]] if request.get("complete") else []
        reply = b'{"data": {}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
env = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_") and not key.lower().endswith("_proxy")}
env.update(
    HOME=folder,
    WANDB_API_KEY="0" * 40,
    WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}",
    WANDB_CACHE_DIR=folder,
    WANDB_CONFIG_DIR=folder,
    WANDB_DATA_DIR=folder,
    WANDB_ERROR_REPORTING="false",
)
wandb = os.path.join(os.path.dirname(sys.executable), "wandb")
done = subprocess.run([wandb, "sync", *paths], env=env, cwd=folder, stdout=sys.stderr, timeout=120)
print(json.dumps(received))
sys.exit(done.returncode)
