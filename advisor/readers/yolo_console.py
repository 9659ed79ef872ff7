"""YOLOv5, v7 and Ultralytics on a console, and `results.txt` of v5 and v7: one row an epoch, named by a header.

`0/299 3.31G 0.0752 0.0327 0.0198 35 640: 100%|████| 8/8`: epoch of the last one, memory, the losses of boxes, of
objects and of classes. As in `results.csv` (`ultralytics.py`) the first of them is read. States of the bar before its
end are running means: no records.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, LineFormat, Row

FORMAT = LineFormat(
    name="yolo",
    framework="ultralytics",
    rows=(
        Row(
            pattern=rb"\s*(?P<epoch>\d+)/(?P<planned_epochs>\d+)\s+(?P<memory_bytes__GiB>\d[\d.]*)G\s+(?P<loss>"
            + LOSS
            + rb")(?:\s+(?:\d[\d.]*|nan)){3,}(?::\s+100%\|.*)?\s*$",
            needs=b"G ",
            facts={"loss_unit": "box loss of a detector"},
        ),
    ),
    notes={
        "loss": "the run has several losses: that of boxes, the first, is read",
        "memory_bytes": "GB of 2**30 bytes",
    },
)
