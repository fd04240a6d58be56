"""Read files of template hits, plain or gzip."""

from pathlib import Path

from data_pipeline.parse.template_hit import MAX_HHR_BYTES, TemplateHit, parse_hhr
from data_pipeline.parse.text_files import read_text_bytes


def read_hhr(path: Path) -> tuple[TemplateHit, ...]:
    return parse_hhr(read_text_bytes(path, MAX_HHR_BYTES), path=path)
