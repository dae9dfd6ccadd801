"""A service that the guard can judge: SGLang's native routes over a formula in place of a model.

Runs on a test host under its own python3. `--broken` answers right to one-token requests, as a
broken tree verify does, and wrong from the second token on.
"""

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def following(ids):
    return (sum(ids) * 31 + len(ids) * 7) % 997


class Routes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.send_error(401)
            return
        request = json.loads(body) if body else {}
        answer = {"/tokenize": self.tokenize, "/generate": self.generate}.get(self.path, dict)
        text = json.dumps(answer(request) if request else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def tokenize(self, request):
        return {"tokens": [ord(letter) for letter in request["prompt"]]}

    def generate(self, request):
        ids, output = list(request["input_ids"]), []
        for i in range(request["sampling_params"]["max_new_tokens"]):
            output.append(following(ids + output) + (1 if i and self.server.broken else 0))
        return {"output_ids": output, "text": " ".join(map(str, output)), "meta_info": {}}

    def log_message(self, *_):
        pass


class Engine(ThreadingHTTPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=30001)
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--api-key")
    asked = parser.parse_args()
    print("loading", " ".join(sys.argv[1:]), flush=True)
    time.sleep(asked.load)
    if asked.crash:
        sys.exit("RuntimeError: it was told to crash")
    engine = Engine(("127.0.0.1", asked.port), Routes)
    engine.broken, engine.key = asked.broken, asked.api_key
    print("The server is fired up and ready to roll!", flush=True)
    engine.serve_forever()
