"""An embedder with known vectors, and a PDF."""

from __future__ import annotations

from fake_embedder import FakeEmbedder

SYNONYMS = {"car": "automobile", "cars": "automobile", "price": "cost"}


FONT = "/Resources << /Font << /F1 3 0 R >> >>"


class SynonymEmbedder(FakeEmbedder):
    """Synonyms have the same vector; one call fails for each entry of ``failures``."""

    def __init__(self):
        super().__init__()
        self.failures = []

    async def embed(self, texts, *, kind):
        if self.failures:
            raise self.failures.pop(0)
        meant = [" ".join(SYNONYMS.get(word, word) for word in text.split(" ")) for text in texts]
        return await super().embed(meant, kind=kind)

    @property
    def passages(self):
        return [text for texts, kind in self.calls if kind == "passage" for text in texts]


def make_pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R {FONT} >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    body, places = "%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    start = len(body)
    body += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    body += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return body.encode("latin-1")
