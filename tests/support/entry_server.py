"""A local server with entries of UniProt, the RCSB PDB and AlphaFold DB."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HBA = "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERM"
HBB = "MVHLTPEEKSAVTALWGKVNVDEVGGEALGRLL"
DNA = "CGCGAATTCGCG"
MODEL = b"data_AF-P69905-F1\n_entry.id AF-P69905-F1\n"
ENTRIES = {
    "/uniprotkb/P69905.fasta": (
        f">sp|P69905|HBA_HUMAN Hemoglobin subunit alpha OS=Homo sapiens OX=9606\n{HBA}\n".encode()
    ),
    "/uniprotkb/Q00000.fasta": b"",
    "/fasta/entry/4HHB": (
        f">4HHB_1|Chains A, C|HEMOGLOBIN (ALPHA CHAIN)|Homo sapiens (9606)\n{HBA}\n"
        f">4HHB_2|Chains B[auth X], D|HEMOGLOBIN (BETA CHAIN)|Homo sapiens (9606)\n{HBB}\n"
        f">4HHB_3|Chain E|DNA (5'-D(*CP*GP)-3')|synthetic construct (32630)\n{DNA}\n"
    ).encode(),
    "/download/4HHB.cif": b"data_4HHB\n_entry.id 4HHB\n",
    "/download/1ABC.cif": b"<html>Maintenance</html>",
    "/api/prediction/P69905": b'[{"cifUrl": "https://alphafold.example.org/files/AF-P69905-F1-model_v6.cif"}]',
    "/api/prediction/Q00000": b"[]",
    "/files/AF-P69905-F1-model_v6.cif": MODEL,
}


@contextmanager
def serving_entries(failures: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, which first answers 503 `failures` times, and the list of requested paths."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            content = ENTRIES.get(self.path, b"no such entry")
            status = 503 if len(paths) <= failures else 200 if self.path in ENTRIES else 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
