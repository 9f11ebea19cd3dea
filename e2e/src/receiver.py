"""Receives webhooks over TLS, checks each with the code of the documentation, and prints it as a line of JSON."""

import json
import pathlib
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from documented import is_genuine

FILES = pathlib.Path("/receiver/secret")
SECRET = (FILES / "secret").read_text()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = {
            "path": self.path,
            "headers": headers,
            "body": body.decode(),
            "genuine": is_genuine(SECRET, headers, body),
            "changedIsGenuine": is_genuine(SECRET, headers, body + b" "),
        }
        print(json.dumps(received), flush=True)
        self.send_response(204 if received["genuine"] else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(FILES / "tls.crt", FILES / "tls.key")
server = ThreadingHTTPServer(("", 8443), Receiver)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
